import sys
from pathlib import Path

# The dictionary model is shared by this folder's tests; importlib mode adds no folder to the path.
sys.path.insert(0, str(Path(__file__).parent))
