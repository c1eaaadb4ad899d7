//! Compression operators with their byte encodings, and the channels built on them.
