"""Operations on a CPU in C++, behind one C function; built when the package is installed."""
