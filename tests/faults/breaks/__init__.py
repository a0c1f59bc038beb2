"""Deliberate breaks: functions that replace others in this process."""
