module tenon.nn;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
