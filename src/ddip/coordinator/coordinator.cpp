#include "ddip/coordinator/coordinator.h"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <deque>
#include <fstream>
#include <map>

#include "ddip/base/error.h"
#include "ddip/base/log.h"
#include "ddip/coordinator/door.h"
#include "ddip/coordinator/journal.h"
#include "ddip/coordinator/request_table.h"
#include "ddip/membership/describe.h"
#include "ddip/membership/membership.h"

namespace ddip::coordinator {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;

// What a client has not taken yet; beyond it the rest waits in the journal.
constexpr size_t kSessionQueueBytes = 4u << 20;
constexpr size_t kMaxOpenCells = 1024;
constexpr size_t kTailBytes = 16u << 10;
constexpr size_t kTailLines = 50;
constexpr auto kWhyPatience = 300ms;
constexpr auto kStopPatience = 400ms;
constexpr auto kAcknowledgePause = 200ms;

std::chrono::nanoseconds seconds(double value) { return std::chrono::nanoseconds(static_cast<int64_t>(value * 1e9)); }

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
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

// 'R', 'S', 'D', 'T', …: the kernel's word on a process that does not answer.
std::string process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
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

struct Coordinator::Core {
  Core(net::Loop& loop, Options given, Events events)
      : loop(loop),
        options(std::move(given)),
        events(std::move(events)),
        journal(options.journal_folder, JournalOptions{}),
        members(membership::empty_group(options.world_size)),
        tails(static_cast<size_t>(options.world_size)),
        door(loop, std::move(options.listener), options.key,
             {[this](Session& session, Message hello) { on_enter(session, std::move(hello)); },
              [this](Session& session, Message message) { on_client(session, std::move(message)); },
              [this](Session& session, const std::string& reason) { on_leave(session, reason); },
              [this](Session& session) { catch_up(session); }}) {
    membership_options.start_timeout = std::chrono::milliseconds(static_cast<int64_t>(options.start_timeout * 1000));
    started = wall_seconds();
    if (options.owner > 0) {
      owner_pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, options.owner, 0)));
      auto end = [this] {
        owner_died.cancel();
        stop("its owner (pid " + std::to_string(options.owner) + ") ended");
      };
      if (owner_pidfd)
        owner_died = loop.when_readable(owner_pidfd.get(), end);
      else
        loop.post(end);
    }
    touch();
  }

  // ---- membership: events in, actions out

  // Carrying an action out may bring the next event at once (a process that cannot be started, say): it waits its turn,
  // or the rest of this decision's actions would come after those of the next.
  void decide(const membership::Event& event) {
    waiting_events.push_back(event);
    if (waiting_events.size() > 1) return;
    while (!waiting_events.empty()) {
      decide_one(waiting_events.front());
      waiting_events.pop_front();
    }
  }

  void decide_one(const membership::Event& event) {
    membership::Decision decision =
        membership::decide(std::move(members), event, std::chrono::steady_clock::now(), membership_options);
    members = std::move(decision.state);
    if (!decision.reason.empty()) log("membership: {}", decision.reason);
    for (const membership::Action& action : decision.actions) {
      std::visit([this](const auto& what) { act(what); }, action);
    }
    membership_timer.cancel();
    if (auto deadline = membership::next_deadline(members, membership_options)) {
      membership_timer =
          loop.after(std::max(0ns, std::chrono::nanoseconds(*deadline - std::chrono::steady_clock::now())),
                     [this] { decide(membership::Tick{}); });
    }
  }

  void act(const membership::Spawn& spawn) {
    json environment = options.environments.at(static_cast<size_t>(spawn.rank));
    environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(rebuilds);
    tails[static_cast<size_t>(spawn.rank)].clear();
    events.to_agent(
        {Type::spawn, spawn.rank, spawn.epoch, spawn.incarnation, {{"environment", std::move(environment)}}, {}});
  }

  void act(const membership::Kill& kill) {
    if (members.phase == membership::Phase::stopping) {
      // An orderly end first: atexit functions run, files are flushed. Those who do not go are killed soon.
      events.to_agent({Type::stop, kill.rank, members.epoch, 0, json::object(), {}});
      stop_kills.push_back(kill);
      if (!stop_timer) {
        stop_timer = loop.after(kStopPatience, [this] {
          for (const membership::Kill& late : stop_kills)
            events.to_agent({Type::kill, late.rank, 0, late.incarnation, json::object(), {}});
        });
      }
      return;
    }
    events.to_agent({Type::kill, kill.rank, 0, kill.incarnation, json::object(), {}});
  }

  void act(const membership::AnnounceReady& ready) {
    if (!was_ready) {
      was_ready = true;
      touch();
      return events.on_ready();
    }
    for (int rank : ready.ranks) {
      group_note(
          fmt::format("rank {} is back, empty: its variables are gone; group.rebuild() re-makes process groups", rank));
    }
    answer_restarts();
  }

  void act(const membership::AnnounceLost& lost) {
    std::string why = fmt::format("rank {} is lost: {}", lost.rank, lost.why);
    log("{}", why);
    lose_cells(lost.rank, lost.why);
  }

  void act(const membership::AnnounceStartFailed& failed) {
    if (!was_ready) return events.on_start_failed(failed.why);
    group_note("restart failed: " + failed.why);
    answer_restarts();
  }

  void act(const membership::AnnounceStopped&) { events.on_stopped(); }

  void act(const membership::Refuse& refuse) { refusal = refuse.why; }

  // ---- agent → us

  void on_agent(Message message) {
    switch (message.type) {
      case Type::joined:
        if (membership::is_current(members, message.rank, static_cast<uint32_t>(message.id))) {
          pids[message.rank] = message.body.value("pid", 0);
        }
        return decide(
            membership::Joined{message.rank, static_cast<uint32_t>(message.id), message.body.value("pid", 0)});
      case Type::exited: {
        std::string why = message.body.value("why", "unknown");
        // One that never came to run cells says here what was wrong: a module that is missing, say.
        std::string words = message.body.value("last_words", "");
        while (!words.empty() && words.back() == '\n') words.pop_back();
        if (!words.empty() && !is_ready(message.rank)) why += ": " + words.substr(words.rfind('\n') + 1);
        lost_details[message.rank] = message.body;
        decide(membership::Exited{message.rank, static_cast<uint32_t>(message.id), why});
        // A rank that is being replaced is not announced as lost, but its cells have ended all the same.
        if (!is_ready(message.rank)) lose_cells(message.rank, why);
        return;
      }
      case Type::host_note: return group_note(message.body.value("text", ""));
      case Type::output: return on_output(std::move(message));
      case Type::display:
        return record_for(message.id, RecordKind::display, message.rank, 0,
                          message.body.dump(-1, ' ', false, json::error_handler_t::replace));
      case Type::note: return record_for(message.id, RecordKind::note, message.rank, 0, message.body.value("text", ""));
      case Type::done: return on_done(std::move(message));
      case Type::stacks: return on_stacks(std::move(message));
      case Type::input_request:
        if (Session* session = session_of(message.id)) {
          asking[message.id].insert(message.rank);
          return session->channel->send(message);
        }
        return refuse_input(message.id, message.rank);
      default: log("agent sent {}, ignored", wire::name_of(message.type));
    }
  }

  void on_output(Message message) {
    const auto& bytes = message.body.at("bytes").get_binary();
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::string& tail = tails.at(static_cast<size_t>(message.rank));
    tail.append(text.substr(text.size() > kTailBytes ? text.size() - kTailBytes : 0));
    if (tail.size() > 2 * kTailBytes) tail.erase(0, tail.size() - kTailBytes);
    record_for(message.id, RecordKind::output, message.rank, message.body.at("stream").get<uint8_t>(), text);
  }

  void on_done(Message message) {
    Request* request = requests.find(message.id);
    if (!request || !request->open_ranks.contains(message.rank)) return;
    if (!message.descriptors.empty()) {
      if (Session* session = door.find(request->session)) {
        Message payload{Type::payload, message.rank, 0, message.id, json::object(), std::move(message.descriptors)};
        session->channel->send(payload);
      }
    }
    settle(*request, message.rank, std::move(message.body));
  }

  void lose_cells(int rank, const std::string& why) {
    for (uint64_t cell : requests.unfinished_on(rank)) {
      Request* request = requests.find(cell);
      json detail = lost_details.contains(rank) ? lost_details.at(rank) : json::object();
      settle(*request, rank,
             {{"outcome", "lost"},
              {"why", why},
              {"detail", detail},
              {"tail", last_lines(tails.at(static_cast<size_t>(rank)), kTailLines)}});
    }
  }

  void settle(Request& request, int rank, json body) {
    uint64_t cell = request.cell;
    if (!requests.settle(cell, rank)) return;
    std::string outcome = body.value("outcome", "");
    record(request.silent, cell, RecordKind::rank_done, rank, 0,
           body.dump(-1, ' ', false, json::error_handler_t::replace), request.session);
    if (outcome != "ok" && !request.open_ranks.empty()) {
      // The others are told at once; what they do about it is the worker's ladder with its own patience.
      Message tell{Type::interrupt,
                   wire::kNoRank,
                   members.epoch,
                   cell,
                   {{"ranks", request.open_ranks},
                    {"because", "peer"},
                    {"peer", rank},
                    {"outcome", outcome},
                    {"settle", options.settle}},
                   {}};
      events.to_agent(std::move(tell));
    }
    if (!requests.finished(cell)) return;
    record(request.silent, cell, RecordKind::cell_done, wire::kNoRank, 0, "{}", request.session);
    // One that lags has not been given the end yet; catch_up() does both.
    if (Session* session = door.find(request.session); session && !session->lagging) session->cells.erase(cell);
    asking.erase(cell);
    requests.forget(cell);
    touch();
  }

  // ---- records: into the journal and out to those who follow

  void record_for(uint64_t cell, RecordKind kind, int rank, uint8_t stream, std::string_view body) {
    Request* request = requests.find(cell);
    record(request && request->silent, cell, kind, rank, stream, body, request ? request->session : 0);
  }

  void record(bool silent, uint64_t cell, RecordKind kind, int rank, uint8_t stream, std::string_view body,
              uint64_t owner) {
    Record entry{0, 0, cell, rank, kind, stream, {}};
    entry.time_us = static_cast<int64_t>(wall_seconds() * 1e6);
    if (silent) {
      entry.body = std::string(body);
      if (Session* session = door.find(owner)) send_record(*session, entry);
      return;
    }
    entry.sequence = journal.append(kind, cell, rank, stream, body, entry.time_us);
    bool copied = false;
    for (Session& session : door.sessions()) {
      if (session.lagging) continue;
      if (!interested(session, entry)) {
        session.cursor = entry.sequence;
        continue;
      }
      if (session.channel->queued_bytes() > kSessionQueueBytes) {
        session.lagging = true;
        continue;
      }
      if (!std::exchange(copied, true)) entry.body = std::string(body);
      send_record(session, entry);
      session.cursor = entry.sequence;
    }
  }

  static bool interested(const Session& session, const Record& entry) {
    // Who asked for a cell knows that it started.
    if (!session.follows_all) return session.cells.contains(entry.cell) && entry.kind != RecordKind::cell_started;
    return !session.only_unfinished || entry.cell >= session.first_cell;
  }

  static void send_record(Session& session, const Record& entry) {
    std::vector<uint8_t> bytes(entry.body.begin(), entry.body.end());
    Message message{Type::record,
                    entry.rank,
                    0,
                    entry.cell,
                    {{"sequence", entry.sequence},
                     {"time_us", entry.time_us},
                     {"kind", static_cast<int>(entry.kind)},
                     {"stream", entry.stream},
                     {"body", json::binary(std::move(bytes))}},
                    {}};
    session.channel->send(message);
  }

  // Gives a session that fell behind, or has just come, what it missed, as far as its queue takes it.
  void catch_up(Session& session) {
    if (!session.lagging) return;
    bool stopped = false;
    read_journal(options.journal_folder, session.cursor, [&](const Record& entry) {
      if (session.channel->queued_bytes() > kSessionQueueBytes) {
        stopped = true;
        return false;
      }
      if (entry.kind == RecordKind::gap || interested(session, entry)) send_record(session, entry);
      if (entry.kind == RecordKind::cell_done) session.cells.erase(entry.cell);
      session.cursor = entry.sequence;
      return true;
    });
    if (stopped) return;
    session.lagging = false;
    if (session.watch_request != 0) {
      Message message{
          Type::caught_up, wire::kNoRank, members.epoch, session.watch_request, {{"cells", open_cells()}}, {}};
      session.watch_request = 0;
      session.channel->send(message);
    }
  }

  void group_note(const std::string& text) {
    log("note: {}", text);
    record(false, 0, RecordKind::note, wire::kNoRank, 0, text, 0);
  }

  // ---- clients

  void on_enter(Session& session, Message hello) {
    session.cursor = journal.last_sequence();
    session.entered_at = session.cursor;
    touch();
    if (!session.client.empty()) {
      try {
        // Asking is how the journal tells whether it can keep this name.
        uint64_t acknowledged = journal.acknowledged(session.client);
        // What happens from here on is news to this client when it comes back, acknowledged or not.
        known_since.try_emplace(session.client, std::max(acknowledged, journal.last_sequence()));
      } catch (const ConfigError& error) {
        return refuse(
            session, hello.id,
            fmt::format("client {}: {}", json(session.client).dump(-1, ' ', false, json::error_handler_t::replace),
                        error.what()));
      }
    }
    Message welcome{Type::welcome, wire::kNoRank, members.epoch, hello.id, info(), {}};
    session.channel->send(welcome);
  }

  void on_leave(Session& session, const std::string& reason) {
    log("client {} (pid {}) left: {}", session.client, session.pid, reason);
    for (uint64_t cell : session.cells) {
      for (int rank : std::exchange(asking[cell], {})) refuse_input(cell, rank);
    }
    save_acknowledgements();
    touch();
  }

  void refuse_input(uint64_t cell, int rank) {
    events.to_agent({Type::input_reply,
                     rank,
                     members.epoch,
                     cell,
                     {{"error", "input() needs a front end, and the one that asked for this cell is gone"}},
                     {}});
  }

  void on_client(Session& session, Message message) {
    touch();
    switch (message.type) {
      case Type::execute: return on_execute(session, std::move(message));
      case Type::interrupt: return on_interrupt(session, message);
      case Type::info: return answer(session, message.id, info());
      case Type::why: return on_why(session, message);
      case Type::restart: return on_restart(session, message);
      case Type::watch: return on_watch(session, message);
      case Type::acknowledge:
        if (session.client.empty()) return;
        acknowledgements[session.client] =
            std::max(acknowledgements[session.client], message.body.at("sequence").get<uint64_t>());
        if (!acknowledge_timer) acknowledge_timer = loop.after(kAcknowledgePause, [this] { save_acknowledgements(); });
        return;
      case Type::input_reply: asking[message.id].erase(message.rank); return events.to_agent(std::move(message));
      case Type::stop:
        stop_requests.emplace_back(session.number, message.id);
        return stop("asked by " + session.client);
      case Type::ping:
        if (message.body.contains("rank")) {  // all the way to a worker's control thread and back
          message.rank = message.body.at("rank").get<int>();
          pings[++last_ping] = {session.number, message.id};
          message.id = last_ping;
          return events.to_agent(std::move(message));
        }
        return answer(session, message.id, json::object());
      default: throw ProtocolError("a client may not send " + wire::name_of(message.type));
    }
  }

  void on_execute(Session& session, Message message) {
    if (members.phase != membership::Phase::running)
      return refuse(session, message.id, "the group is " + std::string(membership::name_of(members.phase)));
    if (requests.size() >= kMaxOpenCells)
      return refuse(session, message.id, fmt::format("{} cells are already waiting", requests.size()));
    std::vector<int> ranks = message.body.at("ranks").get<std::vector<int>>();
    if (ranks.empty()) {
      for (int rank = 0; rank < options.world_size; ++rank) ranks.push_back(rank);
    }
    json behind = json::array();
    for (int rank : ranks) {
      if (rank < 0 || rank >= options.world_size) {
        return refuse(session, message.id,
                      fmt::format("rank {} is not in this group (ranks 0-{})", rank, options.world_size - 1));
      }
      if (!is_ready(rank)) {
        const membership::Member& member = members.members.at(static_cast<size_t>(rank));
        return refuse(
            session, message.id,
            fmt::format("rank {} is {}{}; %makedip -r restarts all, group.restart(ranks=[{}]) this one", rank,
                        membership::name_of(member.status), member.why.empty() ? "" : " (" + member.why + ")", rank));
      }
      for (uint64_t cell : requests.unfinished_on(rank)) {
        if (!requests.find(cell)->silent)
          behind.push_back({{"cell", cell}, {"rank", rank}, {"line", requests.find(cell)->first_line}});
      }
    }
    Request& request = requests.open({0,
                                      session.number,
                                      message.id,
                                      message.body.value("silent", false),
                                      ranks,
                                      {},
                                      message.body.value("first_line", ""),
                                      wall_seconds()});
    session.cells.insert(request.cell);
    json about = {{"ranks", ranks},
                  {"client", session.client},
                  {"source", message.body.value("code", "")},
                  {"name", message.body.value("name", "")}};
    uint64_t client_number = std::exchange(message.id, request.cell);
    message.body["ranks"] = std::move(ranks);
    message.epoch = members.epoch;
    message.rank = wire::kNoRank;
    // The workers first: they begin while we keep books. Their answers cannot overtake what we say below, because they
    // are read on a later turn.
    events.to_agent(std::move(message));
    // `behind` also tells the client about ranks that are stuck, so that a cell never queues in silence.
    session.channel->send({Type::accepted,
                           wire::kNoRank,
                           members.epoch,
                           client_number,
                           {{"cell", request.cell}, {"behind", std::move(behind)}},
                           {}});
    if (request.silent) return;
    ++user_cells;
    record(false, request.cell, RecordKind::cell_started, wire::kNoRank, 0,
           about.dump(-1, ' ', false, json::error_handler_t::replace), session.number);
  }

  void on_interrupt(Session& session, const Message& message) {
    uint64_t wanted = message.body.value("cell", uint64_t{0});
    bool kill = message.body.value("kill", false);
    json touched = json::array();
    std::set<int> stuck;
    for (uint64_t cell : requests.unfinished()) {
      if (wanted != 0 && cell != wanted) continue;
      Request* request = requests.find(cell);
      touched.push_back({{"cell", cell}, {"ranks", request->open_ranks}, {"line", request->first_line}});
      stuck.insert(request->open_ranks.begin(), request->open_ranks.end());
      if (kill) continue;
      events.to_agent({Type::interrupt,
                       wire::kNoRank,
                       members.epoch,
                       cell,
                       {{"ranks", request->open_ranks}, {"because", "user"}},
                       {}});
      if (options.grace > 0) arm_grace(cell);
    }
    answer(session, message.id, {{"cells", touched}, {"killed", kill}});
    if (kill && !stuck.empty()) decide(membership::Replace{std::vector<int>(stuck.begin(), stuck.end())});
  }

  // Only when the user set --grace: a long operator or a torch.save must not cost the weights.
  void arm_grace(uint64_t cell) {
    grace_timers[cell] = loop.after(seconds(options.grace), [this, cell] {
      Request* request = requests.find(cell);
      if (!request) return;
      group_note(fmt::format("grace of {} s is over: stuck ranks are replaced", options.grace));
      decide(membership::Replace{std::vector<int>(request->open_ranks.begin(), request->open_ranks.end())});
    });
  }

  void on_restart(Session& session, const Message& message) {
    std::vector<int> ranks = message.body.at("ranks").get<std::vector<int>>();
    if (ranks.empty()) {
      for (int rank = 0; rank < options.world_size; ++rank) ranks.push_back(rank);
    }
    for (int rank : ranks) {
      if (rank < 0 || rank >= options.world_size) {
        return refuse(session, message.id,
                      fmt::format("rank {} is not in this group (ranks 0-{})", rank, options.world_size - 1));
      }
    }
    if (static_cast<int>(ranks.size()) == options.world_size)
      ++rebuilds;  // nobody is left who knows the old store's keys
    refusal.clear();
    restarts.push_back({session.number, message.id, std::set<int>(ranks.begin(), ranks.end())});
    decide(membership::Replace{ranks});
    if (!refusal.empty()) {
      restarts.pop_back();
      return refuse(session, message.id, refusal);
    }
  }

  void answer_restarts() {
    for (auto restart = restarts.begin(); restart != restarts.end();) {
      bool waiting = false;
      std::string failed;
      for (int rank : restart->ranks) {
        const membership::Member& member = members.members.at(static_cast<size_t>(rank));
        waiting |= member.status == membership::Status::starting || member.status == membership::Status::replacing;
        if (member.status == membership::Status::lost)
          failed = fmt::format("rank {} did not come back: {}", rank, member.why);
      }
      if (waiting) {
        ++restart;
        continue;
      }
      if (Session* session = door.find(restart->session)) {
        if (failed.empty())
          answer(*session, restart->request, info());
        else
          refuse(*session, restart->request, failed);
      }
      restart = restarts.erase(restart);
    }
  }

  void on_watch(Session& session, const Message& message) {
    uint64_t acknowledged =
        session.client.empty() ? 0 : std::max(journal.acknowledged(session.client), acknowledgements[session.client]);
    session.follows_all = true;
    session.watch_request = message.id;
    session.lagging = true;
    if (message.body.contains("after")) {
      session.cursor = message.body.at("after").get<uint64_t>();
    } else if (acknowledged > 0) {
      session.cursor = acknowledged;
    } else if (auto known = known_since.find(session.client);
               known != known_since.end() && known->second < session.entered_at) {
      session.cursor = known->second;
    } else {
      // Somebody new: what is unfinished, not the whole past.
      session.only_unfinished = true;
      session.first_cell = requests.unfinished().empty() ? UINT64_MAX : requests.unfinished().front();
      session.cursor = 0;
    }
    catch_up(session);
    if (session.only_unfinished && session.first_cell == UINT64_MAX) session.only_unfinished = false;
  }

  void save_acknowledgements() {
    acknowledge_timer.cancel();
    for (const auto& [client, sequence] : acknowledgements) {
      try {
        journal.acknowledge(client, std::min(sequence, journal.last_sequence()));
      } catch (const ConfigError& error) {
        log("acknowledgement of {}: {}", client, error.what());
      }
    }
    acknowledgements.clear();
  }

  // ---- why

  struct Why {
    uint64_t session;
    uint64_t request;
    std::map<int, json> answers;
    std::set<int> waiting;
    net::Loop::Handle patience;
  };

  void on_why(Session& session, const Message& message) {
    uint64_t number = ++last_why;
    Why& why = whys[number];
    why.session = session.number;
    why.request = message.id;
    for (int rank = 0; rank < options.world_size; ++rank) {
      if (is_ready(rank)) why.waiting.insert(rank);
    }
    why.patience = loop.after(kWhyPatience, [this, number] { finish_why(number); });
    json ranks = why.waiting;
    if (why.waiting.empty()) return finish_why(number);
    events.to_agent({Type::why, wire::kNoRank, members.epoch, number, {{"ranks", ranks}}, {}});
  }

  void on_stacks(Message message) {
    if (auto ping = pings.find(message.id); message.body.contains("pong") && ping != pings.end()) {
      if (Session* session = door.find(ping->second.first)) answer(*session, ping->second.second, json::object());
      pings.erase(ping);
      return;
    }
    auto found = whys.find(message.id);
    if (found == whys.end()) return;
    found->second.answers[message.rank] = std::move(message.body);
    found->second.waiting.erase(message.rank);
    if (found->second.waiting.empty()) finish_why(message.id);
  }

  void finish_why(uint64_t number) {
    auto found = whys.find(number);
    if (found == whys.end()) return;
    Why why = std::move(found->second);
    whys.erase(found);
    json ranks = json::array();
    for (int rank = 0; rank < options.world_size; ++rank) {
      json entry = {{"rank", rank},
                    {"pid", pids[rank]},
                    {"status", membership::name_of(members.members.at(static_cast<size_t>(rank)).status)}};
      if (why.answers.contains(rank))
        entry.update(why.answers.at(rank));
      else if (is_ready(rank))
        entry["silent"] = process_state(pids[rank]);
      else
        entry["silent"] = members.members.at(static_cast<size_t>(rank)).why;
      ranks.push_back(std::move(entry));
    }
    if (Session* session = door.find(why.session))
      answer(*session, why.request, {{"ranks", ranks}, {"cells", open_cells()}});
  }

  // ---- answers

  json open_cells() {
    json cells = json::array();
    for (uint64_t cell : requests.unfinished()) {
      Request* request = requests.find(cell);
      if (request->silent) continue;
      cells.push_back({{"cell", cell},
                       {"ranks", request->ranks},
                       {"open", request->open_ranks},
                       {"line", request->first_line},
                       {"seconds", wall_seconds() - request->started}});
    }
    return cells;
  }

  json info() {
    json ranks = json::array();
    for (int rank = 0; rank < options.world_size; ++rank) {
      const membership::Member& member = members.members.at(static_cast<size_t>(rank));
      ranks.push_back({{"rank", rank},
                       {"pid", member.alive ? pids[rank] : 0},
                       {"status", membership::name_of(member.status)},
                       {"incarnation", member.incarnation},
                       {"why", member.why},
                       {"device", options.environments.at(static_cast<size_t>(rank)).value("DDIP_DEVICE", "cpu")}});
    }
    json clients = json::array();
    for (const Session& session : door.sessions())
      clients.push_back({{"client", session.client}, {"pid", session.pid}});
    json facts = options.facts;
    facts.update({{"name", options.name},
                  {"world_size", options.world_size},
                  {"epoch", members.epoch},
                  {"phase", membership::name_of(members.phase)},
                  {"pid", ::getpid()},
                  {"ranks", ranks},
                  {"cells", open_cells()},
                  {"clients", clients},
                  {"started", started},
                  {"last_sequence", journal.last_sequence()},
                  {"journal", options.journal_folder.string()},
                  {"idle", options.idle},
                  {"user_cells", user_cells},
                  {"trouble", journal.trouble()},
                  {"agent", events.describe_agent()}});
    return facts;
  }

  void answer(Session& session, uint64_t request, json body) {
    session.channel->send({Type::answer, wire::kNoRank, members.epoch, request, std::move(body), {}});
  }

  void refuse(Session& session, uint64_t request, const std::string& why) {
    session.channel->send({Type::refused, wire::kNoRank, members.epoch, request, {{"why", why}}, {}});
  }

  Session* session_of(uint64_t cell) {
    Request* request = requests.find(cell);
    return request ? door.find(request->session) : nullptr;
  }

  bool is_ready(int rank) const {
    return members.members.at(static_cast<size_t>(rank)).status == membership::Status::ready;
  }

  // ---- life

  void stop(const std::string& why) {
    if (members.phase == membership::Phase::stopping || members.phase == membership::Phase::stopped) return;
    group_note("the group stops: " + why);
    save_acknowledgements();
    decide(membership::Stop{});
  }

  // Something happened; the idle clock starts anew. Idle = no cell open and no client connected.
  void touch() {
    idle_timer.cancel();
    if (options.idle <= 0 || !was_ready) return;
    idle_timer = loop.after(seconds(options.idle), [this] {
      if (requests.size() == 0 && door.sessions().empty())
        return stop(fmt::format("nobody used it for {} s (--idle)", options.idle));
      touch();
    });
  }

  net::Loop& loop;
  Options options;
  Events events;
  Journal journal;
  membership::State members;
  membership::Options membership_options;
  std::deque<membership::Event> waiting_events;  // the first is being decided
  RequestTable requests;
  std::vector<std::string> tails;  // the end of each rank's output, for the obituary
  Door door;

  std::map<int, pid_t> pids;
  std::map<int, json> lost_details;
  std::map<uint64_t, Why> whys;
  uint64_t last_why = 0;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> pings;
  uint64_t last_ping = 1ull << 48;  // apart from why's numbers
  struct Restart {
    uint64_t session;
    uint64_t request;
    std::set<int> ranks;
  };
  std::vector<Restart> restarts;
  std::vector<std::pair<uint64_t, uint64_t>> stop_requests;
  std::vector<membership::Kill> stop_kills;
  std::map<uint64_t, net::Loop::Handle> grace_timers;
  std::map<std::string, uint64_t> acknowledgements;
  std::map<std::string, uint64_t> known_since;  // client → last record before it first came
  std::map<uint64_t, std::set<int>> asking;     // cell → ranks that wait for a line from the front end
  std::string refusal;
  int rebuilds = 0;
  uint64_t user_cells = 0;
  bool was_ready = false;
  double started = 0;

  Fd owner_pidfd;
  net::Loop::Handle owner_died;
  net::Loop::Handle membership_timer;
  net::Loop::Handle stop_timer;
  net::Loop::Handle idle_timer;
  net::Loop::Handle acknowledge_timer;
};

Coordinator::Coordinator(net::Loop& loop, Options options, Events events)
    : core_(std::make_unique<Core>(loop, std::move(options), std::move(events))) {}

Coordinator::~Coordinator() = default;

void Coordinator::start() { core_->decide(membership::Begin{}); }
void Coordinator::stop(const std::string& why) { core_->stop(why); }
void Coordinator::on_agent(Message message) { core_->on_agent(std::move(message)); }

}  // namespace ddip::coordinator
