"""Network interfaces and protocols, over rtnetlink and /proc/net."""
