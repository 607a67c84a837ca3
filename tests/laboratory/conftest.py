import sys
from pathlib import Path

# The trials are a program and a module of this folder; importlib mode adds no folder to the path.
sys.path.insert(0, str(Path(__file__).parent))
