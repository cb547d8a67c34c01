module tenon.base;
import std;
