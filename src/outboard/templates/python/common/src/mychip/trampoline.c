/* Hands what Outboard calls to driver.py, which runs in a process of its own: the header says why and how. */
#define OB_PYTHON_DRIVER "mychip"
#include "outboard/python_driver.h"
