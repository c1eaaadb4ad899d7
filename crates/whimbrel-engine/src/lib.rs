//! The round machine, the simulator, the journal and checkpoints.
