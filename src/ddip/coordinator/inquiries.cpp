#include "ddip/coordinator/inquiries.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "ddip/base/proc_file.h"
#include "ddip/membership/describe.h"

namespace ddip::coordinator {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Type;

constexpr auto kWhyPatience = 300ms;
constexpr size_t kMaxPings = 1024;  // those to a stopped worker are never answered

// 'R', 'S', 'D', 'T', …: the kernel's word on a process that does not answer.
std::string process_state(pid_t pid) {
  std::string text = read_proc_file(fmt::format("/proc/{}/stat", pid));
  size_t after_name = text.rfind(')');
  char state = after_name == std::string::npos || after_name + 2 >= text.size() ? '?' : text[after_name + 2];
  switch (state) {
    case 'T':
    case 't': return "stopped (SIGSTOP or a debugger)";
    case 'D': return "in uninterruptible sleep (disk or driver)";
    case 'Z':
    case '?': return "gone";
    default: return "alive, but its control thread does not answer";
  }
}

}  // namespace

Inquiries::Inquiries(net::Loop& loop, const Members& members, std::function<void(wire::Message)> to_agent)
    : loop_(loop), members_(members), to_agent_(std::move(to_agent)) {}

void Inquiries::why(Answered answered) {
  uint64_t number = ++last_number_;
  Why& why = whys_[number];
  why.answered = std::move(answered);
  for (int rank = 0; rank < members_.size(); ++rank) {
    if (members_.is_ready(rank)) why.waiting.insert(rank);
  }
  if (why.waiting.empty()) return finish(number);
  why.patience = loop_.after(kWhyPatience, [this, number] { finish(number); });
  to_agent_({Type::why, wire::kNoRank, members_.epoch(), number, {{"ranks", why.waiting}}, {}});
}

void Inquiries::ping(int rank, wire::Message message, Answered answered) {
  if (pings_.size() >= kMaxPings) pings_.erase(pings_.begin());
  message.rank = rank;
  message.id = ++last_number_;
  pings_.emplace(message.id, std::move(answered));
  to_agent_(std::move(message));
}

void Inquiries::on_stacks(wire::Message message) {
  if (auto ping = pings_.find(message.id); ping != pings_.end()) {
    ping->second(json::object());
    pings_.erase(ping);
    return;
  }
  auto why = whys_.find(message.id);
  if (why == whys_.end()) return;
  why->second.said[message.rank] = std::move(message.body);
  why->second.waiting.erase(message.rank);
  if (why->second.waiting.empty()) finish(message.id);
}

void Inquiries::finish(uint64_t number) {
  auto found = whys_.find(number);
  if (found == whys_.end()) return;
  Why why = std::move(found->second);
  whys_.erase(found);
  json ranks = json::array();
  for (int rank = 0; rank < members_.size(); ++rank) {
    const membership::Member& member = members_.at(rank);
    json entry = {{"rank", rank}, {"pid", member.pid}, {"status", membership::name_of(member.status)}};
    if (auto said = why.said.find(rank); said != why.said.end())
      entry.update(said->second);
    else
      entry["silent"] = members_.is_ready(rank) ? process_state(member.pid) : member.why;
    ranks.push_back(std::move(entry));
  }
  why.answered(std::move(ranks));
}

}  // namespace ddip::coordinator
