// The program in whose place scripts/try.sh builds the user's: its compile and link commands are those of a program that imports every module.
import std;

int main() {}
