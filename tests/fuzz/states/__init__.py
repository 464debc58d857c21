"""Programs that keep state from call to call, and callers that change it between two calls."""
