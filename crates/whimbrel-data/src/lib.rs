//! Readers, partitioners and generators of data.
