"""Words everyone uses: errors, ids, the clock, names, patterns, limits, JSON. No I/O."""
