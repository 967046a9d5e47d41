"""The folder that ``memprof run`` puts on PYTHONPATH; see ``sitecustomize.py``."""
