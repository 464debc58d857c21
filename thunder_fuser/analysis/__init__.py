"""Questions about a fusion: nothing here changes one."""
