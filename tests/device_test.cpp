#include <doctest/doctest.h>
import std;
import tenon.device;
