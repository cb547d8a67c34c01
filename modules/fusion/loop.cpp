module tenon.fusion;
import std;
