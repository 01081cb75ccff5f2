"""GPUs by NVIDIA's management library, in a process of its own: the library may hang."""
