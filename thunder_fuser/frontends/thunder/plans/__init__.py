"""Plans of compiled functions: per fusion, per trace and on a device mesh, as text and tables."""
