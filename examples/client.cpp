// Runs one cell on every rank of a running group and prints what each rank said.
//   ddip up -n 2 demo && ./client demo 'import os; print("pid", os.getpid())'
#include <ddip/client/client.h>
#include <ddip/net/local_socket.h>

#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) try {
  using namespace ddip::client;
  const char* folder = std::getenv("DDIP_RUNTIME_DIR");  // where groups live, if not in the usual place
  Client group(require_group(ddip::net::runtime_folder(folder ? folder : ""), argc > 1 ? argv[1] : "demo"), "client.cpp");
  json request = {{"ranks", json::array()}, {"code", argc > 2 ? argv[2] : "print('hello')"}};  // no ranks: all of them
  const auto cell = group.execute(request, {}, Milliseconds(5000), true).cell;
  std::map<int, std::string> said;
  for (bool done = false; !done;) {
    const auto event = group.next(cell, Milliseconds(1000));  // nothing: no news, the cell goes on
    if (event && event->kind == RecordKind::output) said[event->rank] += event->bytes;
    done = event && event->kind == RecordKind::cell_done;
  }
  for (const auto& [rank, text] : said) std::cout << "rank " << rank << " said: " << text;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 2;
}
