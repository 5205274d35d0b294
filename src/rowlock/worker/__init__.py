"""The worker: claims work, runs it in pools, writes the outcomes, and beats meanwhile."""
