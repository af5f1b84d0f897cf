"""The words that can be typed: parsers, options, amounts."""
