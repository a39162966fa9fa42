#include "ddip/coordinator/records.h"

#include <algorithm>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/base/log.h"

namespace ddip::coordinator {
namespace {

using namespace std::chrono_literals;
using wire::json;

// What a client has not taken yet; beyond it the rest waits in the journal.
constexpr size_t kSessionQueueBytes = 4u << 20;
constexpr auto kAcknowledgePause = 200ms;

int64_t wall_microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool full(const Session& session) { return session.channel->queued_bytes() > kSessionQueueBytes; }

bool interested(const Following& following, uint64_t cell, RecordKind kind) {
  // Who asked for a cell knows that it started.
  if (!following.all) return following.cells.contains(cell) && kind != RecordKind::cell_started;
  return !following.only_unfinished || cell >= following.first_cell;
}

// 0 as sequence: not in the journal.
void send(Session& session, const Records::About& about, uint64_t sequence, int64_t time_us, std::string_view body) {
  wire::Message record{wire::Type::record,
                       about.rank,
                       0,
                       about.cell,
                       {{"sequence", sequence},
                        {"time_us", time_us},
                        {"kind", static_cast<int>(about.kind)},
                        {"stream", about.stream},
                        {"body", json::binary(std::vector<uint8_t>(body.begin(), body.end()))}},
                       {}};
  // One rank's end is seldom the last word: most often the other ranks' follow at once, and then the cell's.
  if (about.kind == RecordKind::rank_done)
    session.channel->send_soon(record);
  else
    session.channel->send(record);
}

// There is no falling behind: it would never come to an end if a thread goes on and on.
void give_late(Session& session, const Records::About& about, uint64_t sequence, int64_t time_us,
               std::string_view body) {
  if (full(session)) {
    session.following.late_left_out = true;
    return;
  }
  if (std::exchange(session.following.late_left_out, false))
    send(session, {RecordKind::gap, about.cell}, 0, time_us, "lines left out (%diplog)");
  send(session, about, sequence, time_us, body);
}

}  // namespace

Records::Records(net::Loop& loop, Door& door, std::filesystem::path folder, CaughtUp caught_up)
    : loop_(loop),
      door_(door),
      folder_(std::move(folder)),
      caught_up_(std::move(caught_up)),
      journal_(folder_, JournalOptions{}) {}

void Records::add(const About& about, std::string_view body) {
  const int64_t time_us = wall_microseconds();
  const uint64_t sequence = journal_.append(about.kind, about.cell, about.rank, about.stream, body, time_us);
  for (Session& session : door_.sessions()) {
    Following& following = session.following;
    if (following.late && about.late) give_late(session, about, sequence, time_us, body);
    if (following.late || following.lagging) continue;
    if (interested(following, about.cell, about.kind)) {
      if (full(session)) {
        following.lagging = true;
        continue;
      }
      send(session, about, sequence, time_us, body);
    }
    following.cursor = sequence;
    if (about.kind == RecordKind::cell_done) following.cells.erase(about.cell);
  }
}

void Records::tell(Session& session, const About& about, std::string_view body) {
  send(session, about, 0, wall_microseconds(), body);
  if (about.kind == RecordKind::cell_done) session.following.cells.erase(about.cell);
}

void Records::note(const std::string& text) {
  log("note: {}", text);
  add({RecordKind::note}, text);
}

void Records::enter(Session& session) {
  session.following.cursor = session.following.entered_at = last_sequence();
  if (session.client.empty()) return;
  // Asking is how the journal tells whether it can keep this name.
  uint64_t acknowledged = journal_.acknowledged(session.client);
  // What happens from here on is news to this client when it comes back, acknowledged or not.
  known_since_.try_emplace(session.client, std::max(acknowledged, last_sequence()));
}

void Records::watch(Session& session, const Watch& watch) {
  Following& following = session.following;
  following.all = true;
  following.watch_request = watch.request;
  following.lagging = true;
  begin_at(session, watch);
  catch_up(session);
  if (following.only_unfinished && following.first_cell == UINT64_MAX) following.only_unfinished = false;
}

void Records::watch_late(Session& session, uint64_t request) {
  session.following.late = true;
  caught_up_(session, request);
}

void Records::begin_at(Session& session, const Watch& watch) {
  Following& following = session.following;
  uint64_t acknowledged = session.client.empty() ? 0 : journal_.acknowledged(session.client);
  if (auto pending = acknowledgements_.find(session.client); pending != acknowledgements_.end())
    acknowledged = std::max(acknowledged, pending->second);
  auto known = known_since_.find(session.client);
  if (watch.after) {
    following.cursor = *watch.after;
  } else if (acknowledged > 0) {
    following.cursor = acknowledged;
  } else if (known != known_since_.end() && known->second < following.entered_at) {
    following.cursor = known->second;
  } else {
    // Somebody new: what is unfinished, not the whole past.
    following.only_unfinished = true;
    following.first_cell = watch.first_open_cell.value_or(UINT64_MAX);
    following.cursor = 0;
  }
}

void Records::catch_up(Session& session) {
  Following& following = session.following;
  if (!following.lagging) return;
  bool stopped = false;
  read_journal(folder_, following.cursor, [&](const Record& entry) {
    if (full(session)) {
      stopped = true;
      return false;
    }
    if (entry.kind == RecordKind::gap || interested(following, entry.cell, entry.kind))
      send(session, {entry.kind, entry.cell, entry.rank, entry.stream}, entry.sequence, entry.time_us, entry.body);
    if (entry.kind == RecordKind::cell_done) following.cells.erase(entry.cell);
    following.cursor = entry.sequence;
    return true;
  });
  if (stopped) return;
  following.lagging = false;
  if (following.watch_request != 0) caught_up_(session, std::exchange(following.watch_request, 0));
}

void Records::acknowledge(const Session& session, uint64_t sequence) {
  if (session.client.empty()) return;
  uint64_t& known = acknowledgements_[session.client];
  known = std::max(known, sequence);
  if (!acknowledge_timer_) acknowledge_timer_ = loop_.after(kAcknowledgePause, [this] { save_acknowledgements(); });
}

void Records::save_acknowledgements() {
  acknowledge_timer_.cancel();
  for (const auto& [client, sequence] : acknowledgements_) {
    try {
      journal_.acknowledge(client, std::min(sequence, last_sequence()));
    } catch (const ConfigError& error) {
      log("acknowledgement of {}: {}", client, error.what());
    }
  }
  acknowledgements_.clear();
}

}  // namespace ddip::coordinator
