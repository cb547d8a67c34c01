module tenon.device;
import std;
