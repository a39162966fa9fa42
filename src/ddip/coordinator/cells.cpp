#include "ddip/coordinator/cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "ddip/membership/describe.h"

namespace ddip::coordinator {
namespace {

using wire::json;
using wire::Message;
using wire::Type;

constexpr size_t kMaxOpenCells = 1024;
constexpr size_t kTailBytes = 16u << 10;
constexpr size_t kTailLines = 50;
// What a record of a cell's start has besides its source.
constexpr size_t kAboutACell = 64u << 10;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string as_text(const json& body) { return body.dump(-1, ' ', false, json::error_handler_t::replace); }

// In MiB, if the journal's record of its start would be too large for a frame; the source is written there as JSON,
// where a control character takes six bytes.
std::optional<double> too_large_as_json(const std::string& source) {
  if (source.size() < net::kBodyCap / 8) return std::nullopt;
  const size_t size = as_text(source).size();
  if (size <= net::kBodyCap - kAboutACell) return std::nullopt;
  return static_cast<double>(size) / (1u << 20);
}

// Each once, in the order in which they were named.
void drop_repeated(std::vector<int>& ranks) {
  if (std::ranges::adjacent_find(ranks, std::greater_equal()) == ranks.end()) return;  // ascending, as nearly always
  std::set<int> seen;
  std::erase_if(ranks, [&](int rank) { return !seen.insert(rank).second; });
}

bool is_environment(const json& variables) {
  return variables.is_object() &&
         std::all_of(variables.begin(), variables.end(), [](const json& value) { return value.is_string(); });
}

std::string last_lines(const std::string& text, size_t lines) {
  size_t at = text.size();
  while (at > 0 && lines > 0) {
    size_t newline = text.rfind('\n', at - 1);
    if (newline == std::string::npos) return text;
    at = newline;
    if (at + 1 < text.size()) --lines;
  }
  return at == 0 && lines > 0 ? text : text.substr(std::min(at + 1, text.size()));
}

}  // namespace

Cells::Cells(net::Loop& loop, Group group, Options options, Events events)
    : loop_(loop),
      door_(group.door),
      members_(group.members),
      records_(group.records),
      options_(options),
      events_(std::move(events)),
      ranks_(static_cast<size_t>(members_.size())) {}

// ---- from clients

void Cells::execute(Session& session, Message message) {
  const auto refuse = [&](const std::string& why) { session.refuse(members_.epoch(), message.id, why); };
  if (members_.phase() != membership::Phase::running)
    return refuse("the group is " + std::string(membership::name_of(members_.phase())));
  if (requests_.size() >= kMaxOpenCells) return refuse(fmt::format("{} cells are already waiting", requests_.size()));
  std::vector<int> ranks = message.body.at("ranks").get<std::vector<int>>();
  if (ranks.empty()) {
    for (int rank = 0; rank < members_.size(); ++rank) ranks.push_back(rank);
  }
  drop_repeated(ranks);
  json environment = message.body.value("environment", json::object());
  if (!is_environment(environment)) return refuse("environment: expected an object of texts");
  const std::string source = message.body.value("code", message.body.value("first_line", ""));
  if (const auto size = too_large_as_json(source)) {
    return refuse(fmt::format("the source of this cell is {:.1f} MiB as JSON, and at most {} can be kept; {}", *size,
                              net::kBodyCap >> 20, wire::kCellTooLargeRemedy));
  }
  json behind = json::array();
  for (int rank : ranks) {
    if (std::string why = why_not(rank); !why.empty()) return refuse(why);
    for (uint64_t cell : requests_.unfinished_on(rank)) {
      if (!requests_.find(cell)->silent)
        behind.push_back({{"cell", cell}, {"rank", rank}, {"line", requests_.find(cell)->first_line}});
    }
  }
  Request& request = requests_.open({.session = session.number,
                                     .silent = message.body.value("silent", false),
                                     .ranks = ranks,
                                     .first_line = message.body.value("first_line", ""),
                                     .started = wall_seconds(),
                                     .environment = std::move(environment)});
  records_.follow(session, request.cell);
  json about = {
      {"ranks", ranks}, {"client", session.client}, {"source", source}, {"name", message.body.value("name", "")}};
  uint64_t client_number = std::exchange(message.id, request.cell);
  message.body["ranks"] = std::move(ranks);
  message.epoch = members_.epoch();
  message.rank = wire::kNoRank;
  // The workers first: they begin while we keep books. Their answers cannot overtake what we say below, because they
  // are read on a later turn.
  events_.to_agent(std::move(message));
  // `behind` also tells the client about ranks that are stuck, so that a cell never queues in silence.
  // A small cell's end travels with it, so that its client wakes once.
  session.channel->send_soon({Type::accepted,
                              wire::kNoRank,
                              members_.epoch(),
                              client_number,
                              {{"cell", request.cell}, {"behind", std::move(behind)}},
                              {}});
  if (request.silent) return;
  ++count_;
  records_.add({RecordKind::cell_started, request.cell}, as_text(about));
}

// Why a cell cannot run there; empty: it can.
std::string Cells::why_not(int rank) const {
  if (!members_.has(rank)) return fmt::format("rank {} is not in this group (ranks 0-{})", rank, members_.size() - 1);
  if (members_.is_ready(rank)) return "";
  const membership::Member& member = members_.at(rank);
  return fmt::format(
      "rank {0} is {1}{2}; %makedip -r --ranks {0}, or restart(ranks=[{0}]) of its Group, starts it anew, empty", rank,
      membership::name_of(member.status), member.why.empty() ? "" : " (" + member.why + ")");
}

void Cells::interrupt(Session& session, const Message& message) {
  uint64_t wanted = message.body.value("cell", uint64_t{0});
  bool kill = message.body.value("kill", false);
  json touched = json::array();
  std::set<int> stuck;
  for (uint64_t cell : requests_.unfinished()) {
    if (wanted != 0 && cell != wanted) continue;
    Request* request = requests_.find(cell);
    touched.push_back({{"cell", cell}, {"ranks", request->open_ranks}, {"line", request->first_line}});
    stuck.insert(request->open_ranks.begin(), request->open_ranks.end());
    if (kill) continue;
    events_.to_agent({Type::interrupt,
                      wire::kNoRank,
                      members_.epoch(),
                      cell,
                      {{"ranks", request->open_ranks}, {"because", "user"}},
                      {}});
    if (options_.grace > 0) arm_grace(cell);
  }
  session.answer(members_.epoch(), message.id, {{"cells", touched}, {"killed", kill}});
  if (kill && !stuck.empty()) members_.replace({stuck.begin(), stuck.end()});
}

// Only when the user set --grace: a long operator or a torch.save must not cost the weights.
void Cells::arm_grace(uint64_t cell) {
  const auto grace = std::chrono::nanoseconds(static_cast<int64_t>(options_.grace * 1e9));
  grace_timers_[cell] = loop_.after(grace, [this, cell] {
    Request* request = requests_.find(cell);
    if (!request) return;
    records_.note(fmt::format("grace of {} s is over: stuck ranks are replaced", options_.grace));
    members_.replace({request->open_ranks.begin(), request->open_ranks.end()});
  });
}

void Cells::input_reply(Message message) {
  if (auto asking = asking_.find(message.id); asking != asking_.end()) asking->second.erase(message.rank);
  events_.to_agent(std::move(message));
}

void Cells::client_left(const Session& session) {
  for (auto& [cell, asking] : asking_) {
    Request* request = requests_.find(cell);
    if (!request || request->session != session.number) continue;
    for (int rank : std::exchange(asking, {})) refuse_input(cell, rank);
  }
}

void Cells::refuse_input(uint64_t cell, int rank) {
  events_.to_agent({Type::input_reply,
                    rank,
                    members_.epoch(),
                    cell,
                    {{"error", "input() needs a front end, and the one that asked for this cell is gone"}},
                    {}});
}

// ---- from workers

void Cells::output(Message message) {
  const auto& bytes = message.body.at("bytes").get_binary();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Rank& rank = ranks_.at(static_cast<size_t>(message.rank));
  std::string& tail = rank.tail;
  if (std::exchange(rank.tail_of, message.id) != message.id) tail.clear();
  tail.append(text.substr(text.size() > kTailBytes ? text.size() - kTailBytes : 0));
  if (tail.size() > 2 * kTailBytes) tail.erase(0, tail.size() - kTailBytes);
  uint8_t stream = message.body.at("stream").get<uint8_t>();
  record(requests_.find(message.id), {RecordKind::output, message.id, message.rank, stream}, text);
}

void Cells::display(Message message) {
  record(requests_.find(message.id), {RecordKind::display, message.id, message.rank}, as_text(message.body));
}

void Cells::note(Message message) {
  record(requests_.find(message.id), {RecordKind::note, message.id, message.rank}, message.body.value("text", ""));
}

void Cells::input_request(Message message) {
  Session* session = session_of(message.id);
  if (!session) return refuse_input(message.id, message.rank);
  asking_[message.id].insert(message.rank);
  session->channel->send(message);
}

void Cells::done(Message message) {
  Request* request = requests_.find(message.id);
  if (!request || !request->open_ranks.contains(message.rank)) return;
  if (!message.descriptors.empty()) {
    if (Session* session = door_.find(request->session)) {
      session->channel->send(
          {Type::payload, message.rank, 0, message.id, json::object(), std::move(message.descriptors)});
    }
  }
  settle(*request, message.rank, std::move(message.body));
}

// ---- endings

void Cells::forget_rank(int rank) { ranks_.at(static_cast<size_t>(rank)) = {}; }

void Cells::remember_ending(int rank, json ending) { ranks_.at(static_cast<size_t>(rank)).ending = std::move(ending); }

void Cells::lose(int rank, const std::string& why) {
  const Rank& lost = ranks_.at(static_cast<size_t>(rank));
  for (uint64_t cell : requests_.unfinished_on(rank)) {
    const std::string tail = lost.tail_of == cell ? last_lines(lost.tail, kTailLines) : "";
    settle(*requests_.find(cell), rank, {{"outcome", "lost"}, {"why", why}, {"detail", lost.ending}, {"tail", tail}});
  }
}

void Cells::settle(Request& request, int rank, json body) {
  uint64_t cell = request.cell;
  if (!requests_.settle(cell, rank)) return;
  std::string outcome = body.value("outcome", "");
  record(&request, {RecordKind::rank_done, cell, rank}, as_text(body));
  if (outcome != "ok") request.environment.clear();
  if (outcome != "ok" && !request.open_ranks.empty()) {
    // The others are told at once; what they do about it is the worker's ladder with its own patience.
    events_.to_agent({Type::interrupt,
                      wire::kNoRank,
                      members_.epoch(),
                      cell,
                      {{"ranks", request.open_ranks},
                       {"because", "peer"},
                       {"peer", rank},
                       {"outcome", outcome},
                       {"settle", options_.settle}},
                      {}});
  }
  if (!requests_.finished(cell)) return;
  record(&request, {RecordKind::cell_done, cell}, "{}");
  members_.extend_environments(request.environment);
  asking_.erase(cell);
  grace_timers_.erase(cell);
  requests_.forget(cell);
  events_.on_finished();
}

void Cells::record(const Request* request, const Records::About& about, std::string_view body) {
  if (!request) {
    Records::About late = about;
    late.late = about.cell != 0;
    return records_.add(late, body);
  }
  if (!request->silent) return records_.add(about, body);
  if (Session* session = door_.find(request->session)) records_.tell(*session, about, body);
}

// ---- what there is

Session* Cells::session_of(uint64_t cell) {
  Request* request = requests_.find(cell);
  return request ? door_.find(request->session) : nullptr;
}

std::optional<uint64_t> Cells::first_open() const {
  std::vector<uint64_t> cells = requests_.unfinished();
  return cells.empty() ? std::nullopt : std::optional(cells.front());
}

json Cells::describe_open() const {
  json cells = json::array();
  for (uint64_t cell : requests_.unfinished()) {
    const Request* request = requests_.find(cell);
    if (request->silent) continue;
    cells.push_back({{"cell", cell},
                     {"ranks", request->ranks},
                     {"open", request->open_ranks},
                     {"line", request->first_line},
                     {"seconds", wall_seconds() - request->started}});
  }
  return cells;
}

}  // namespace ddip::coordinator
