/* A program that knows of a packaged model what its header says, and nothing of Tenon:
     cc package_main.c -IFOLDER -o classify FOLDER/libclassifier.so -Wl,-rpath,FOLDER
     ./classify FOLDER/weights.safetensors <pixels >scores
   It reads rows of input as they lie in memory and writes what the model makes of each. */
#include <stdio.h>
#include "classifier.h"

static int failed(void) {
  fprintf(stderr, "%s\n", classifier_error());
  return 1;
}

int main(int argc, char **argv) {
  static float pixels[classifier_input0_elements], scores[classifier_output0_elements];
  if (argc != 2) return fprintf(stderr, "usage: %s weights.safetensors <pixels >scores\n", argv[0]), 2;
  classifier *const model = classifier_create(argv[1]);
  if (!model) return failed();
  const void *const inputs[] = {pixels};
  void *const outputs[] = {scores};
  while (fread(pixels, sizeof pixels, 1, stdin) == 1) {
    if (classifier_run(model, inputs, outputs)) return failed();
    fwrite(scores, sizeof scores, 1, stdout);
  }
  classifier_destroy(model);
  return fflush(stdout) ? 1 : 0;
}
