"""Many runs that belong together: done once each, side by side where there is room, and kept."""
