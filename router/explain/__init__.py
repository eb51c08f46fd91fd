"""Why requests went where they went, and what became of them. Kept: `decisions`; as JSON: `view`; as tables: `show`."""
