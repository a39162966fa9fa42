// consumer: lists this user's groups.
// consumer NAME CODE: runs CODE on every rank of that group and prints what they write.
#include <ddip/client/client.h>
#include <ddip/net/local_socket.h>

#include <cstdlib>
#include <iostream>
#include <map>

int main(int argc, char** argv) {
  using namespace ddip;
  using namespace std::chrono_literals;
  const char* elsewhere = std::getenv("DDIP_RUNTIME_DIR");
  const auto runtime = net::runtime_folder(elsewhere ? elsewhere : "");
  for (const auto& group : client::all_groups(runtime)) std::cout << "group " << group.name() << "\n";
  if (argc != 3) return 0;

  client::Client client(client::require_group(runtime, argv[1]), "consumer");
  const uint64_t cell = client.execute({{"ranks", client::json::array()}, {"code", argv[2]}}, {}, 10s, true).cell;
  std::map<int, std::string> said;  // by rank: output comes in pieces, as it was written
  while (auto event = client.next(cell, 60s)) {
    if (event->kind == client::RecordKind::output) said[event->rank] += event->bytes;
    if (event->kind != client::RecordKind::cell_done) continue;
    for (const auto& [rank, text] : said) std::cout << "[" << rank << "] " << text;
    return 0;
  }
  return 1;
}
