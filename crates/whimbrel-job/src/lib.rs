//! Job files: keys, defaults, errors, and what is built from them.
