"""Time windows in any time zone, and cron schedules. Pure."""
