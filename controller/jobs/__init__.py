"""Jobs that reserve their own UltraServers: which ask for it, what is made for them, and when it ends."""
