"""What can be broken on purpose: functions that replace others, in this process."""
