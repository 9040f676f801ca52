"""Endurance: the same for very long, with memory, descriptors and threads that must not grow."""
