#include <cstdio>
#include <cstring>

#include "serve.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "serve") == 0) return ddip::app::serve();
  std::fprintf(stderr, "ddip: unknown command\n");
  return 2;
}
