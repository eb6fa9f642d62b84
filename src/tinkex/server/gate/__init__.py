"""What a request passes before its route: key, tenant limits, overload."""
