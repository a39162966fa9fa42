#include "replaced.h"

#include <fmt/format.h>

#include <thread>

#include "ddip/base/error.h"
#include "find_group.h"
#include "style.h"

namespace ddip::app {

using wire::json;
using namespace std::chrono_literals;

json await_replaced(client::Client& client, const json& before, const std::vector<int>& ranks) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  for (;;) {
    json now = client.request(wire::Type::info, json::object(), kAnswer);
    bool back = true;
    for (int rank : ranks) {
      const json& entry = now.at("ranks").at(static_cast<size_t>(rank));
      const json& old = before.at("ranks").at(static_cast<size_t>(rank));
      back &= entry.value("status", "") == "ready" && entry.at("incarnation") > old.at("incarnation");
    }
    if (back) return now;
    if (std::chrono::steady_clock::now() > deadline)
      throw TimedOut(fmt::format("{} did not come back in 60 s; ddip info says more", ranks_in_words(ranks)));
    std::this_thread::sleep_for(10ms);
  }
}

}  // namespace ddip::app
