"""Windows and cron schedules: when they open and close, in any time zone. Pure."""
