#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
