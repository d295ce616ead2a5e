"""Train matched ladders of language models that differ only in how they aggregate depth."""
