#include "ddip/coordinator/coordinator.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "ddip/base/error.h"
#include "ddip/base/log.h"
#include "ddip/base/pidfd.h"
#include "ddip/coordinator/cells.h"
#include "ddip/coordinator/door.h"
#include "ddip/coordinator/inquiries.h"
#include "ddip/coordinator/members.h"
#include "ddip/coordinator/records.h"
#include "ddip/membership/describe.h"

namespace ddip::coordinator {
namespace {

using wire::json;
using wire::Message;
using wire::Type;

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

// Passes each message to the part that knows what to do with it, and ends the group when it should end.
struct Coordinator::Core {
  Core(net::Loop& loop, Options given, Events events)
      : loop(loop),
        options(std::move(given)),
        events(std::move(events)),
        members(loop, {std::move(options.environments), options.start_timeout},
                {this->events.to_agent, [this](int rank) { cells.forget_rank(rank); },
                 [this](const std::vector<int>& ranks) { on_ready(ranks); },
                 [this](const std::string& why) { on_start_failed(why); },
                 [this](int rank, const std::string& why) { cells.lose(rank, why); }, this->events.on_stopped}),
        door(loop, std::move(options.listener), options.key,
             {[this](Session& session, Message hello) { on_enter(session, std::move(hello)); },
              [this](Session& session, Message message) { on_client(session, std::move(message)); },
              [this](Session& session, const std::string& reason) { on_leave(session, reason); },
              [this](Session& session) { records.catch_up(session); }}),
        records(loop, door, options.journal_folder,
                [this](Session& session, uint64_t request) { on_caught_up(session, request); }),
        cells(loop, {door, members, records}, {options.settle, options.grace},
              {this->events.to_agent, [this] { touch(); }}),
        inquiries(loop, members, this->events.to_agent) {
    if (options.owner > 0) watch_owner();
    touch();
  }

  // ---- agent → us

  void on_agent(Message message) {
    switch (message.type) {
      case Type::joined:
        return members.joined(message.rank, static_cast<uint32_t>(message.id), message.body.value("pid", 0));
      case Type::exited: return on_exited(std::move(message));
      case Type::host_note: return records.note(message.body.value("text", ""));
      case Type::output: return cells.output(std::move(message));
      case Type::display: return cells.display(std::move(message));
      case Type::note: return cells.note(std::move(message));
      case Type::done: return cells.done(std::move(message));
      case Type::input_request: return cells.input_request(std::move(message));
      case Type::stacks: return inquiries.on_stacks(std::move(message));
      default: log("agent sent {}, ignored", wire::name_of(message.type));
    }
  }

  void on_exited(Message message) {
    std::string why = message.body.value("why", "unknown");
    // One that never came to run cells says here what was wrong: a module that is missing, say.
    std::string words = message.body.value("last_words", "");
    while (!words.empty() && words.back() == '\n') words.pop_back();
    if (!words.empty() && !members.is_ready(message.rank)) why += ": " + words.substr(words.rfind('\n') + 1);
    cells.remember_ending(message.rank, std::move(message.body));
    members.exited(message.rank, static_cast<uint32_t>(message.id), why);
    // A rank that is being replaced is not announced as lost, but its cells have ended all the same.
    if (!members.is_ready(message.rank)) cells.lose(message.rank, why);
  }

  // ---- members → us

  void on_ready(const std::vector<int>& ranks) {
    if (!was_ready) {
      was_ready = true;
      touch();
      return events.on_ready();
    }
    for (int rank : ranks) {
      records.note(fmt::format(
          "rank {} is back, empty: its variables are gone; %makedip --rebuild re-makes process groups", rank));
    }
  }

  void on_start_failed(const std::string& why) {
    if (!was_ready) return events.on_start_failed(why);
    records.note("restart failed: " + why);
  }

  // ---- clients → us

  void on_enter(Session& session, Message hello) {
    touch();
    try {
      records.enter(session);
    } catch (const ConfigError& error) {
      std::string name = json(session.client).dump(-1, ' ', false, json::error_handler_t::replace);
      return session.refuse(members.epoch(), hello.id, fmt::format("client {}: {}", name, error.what()));
    }
    session.channel->send({Type::welcome, wire::kNoRank, members.epoch(), hello.id, info(), {}});
  }

  void on_leave(Session& session, const std::string& reason) {
    log("client {} (pid {}) left: {}", session.client, session.pid, reason);
    cells.client_left(session);
    records.save_acknowledgements();
    touch();
  }

  void on_client(Session& session, Message message) {
    touch();
    switch (message.type) {
      case Type::execute: return cells.execute(session, std::move(message));
      case Type::interrupt: return cells.interrupt(session, message);
      case Type::input_reply: return cells.input_reply(std::move(message));
      case Type::info: return session.answer(members.epoch(), message.id, info());
      case Type::why: return on_why(session, message);
      case Type::ping: return on_ping(session, std::move(message));
      case Type::restart: return on_restart(session, message);
      case Type::watch: return on_watch(session, message);
      case Type::acknowledge: return records.acknowledge(session, message.body.at("sequence").get<uint64_t>());
      case Type::stop: return stop("asked by " + session.client);
      default: throw ProtocolError("a client may not send " + wire::name_of(message.type));
    }
  }

  void on_why(Session& session, const Message& message) {
    inquiries.why([this, number = session.number, request = message.id](json ranks) {
      if (Session* asked = door.find(number))
        asked->answer(members.epoch(), request, {{"ranks", std::move(ranks)}, {"cells", cells.describe_open()}});
    });
  }

  void on_ping(Session& session, Message message) {
    if (!message.body.contains("rank")) return session.answer(members.epoch(), message.id, json::object());
    int rank = message.body.at("rank").get<int>();
    uint64_t request = message.id;
    inquiries.ping(rank, std::move(message), [this, number = session.number, request](json nothing) {
      if (Session* asked = door.find(number)) asked->answer(members.epoch(), request, std::move(nothing));
    });
  }

  void on_restart(Session& session, const Message& message) {
    std::set<int> ranks = message.body.at("ranks").get<std::set<int>>();
    if (ranks.empty()) {
      for (int rank = 0; rank < members.size(); ++rank) ranks.insert(rank);
    }
    for (int rank : ranks) {
      if (members.has(rank)) continue;
      return session.refuse(members.epoch(), message.id,
                            fmt::format("rank {} is not in this group (ranks 0-{})", rank, members.size() - 1));
    }
    members.restart(ranks, [this, number = session.number, request = message.id](const std::string& failed) {
      Session* asked = door.find(number);
      if (!asked) return;
      if (failed.empty())
        asked->answer(members.epoch(), request, info());
      else
        asked->refuse(members.epoch(), request, failed);
    });
  }

  void on_watch(Session& session, const Message& message) {
    if (message.body.value("late", false)) return records.watch_late(session, message.id);
    Records::Watch watch{message.id, {}, cells.first_open()};
    if (message.body.contains("after")) watch.after = message.body.at("after").get<uint64_t>();
    records.watch(session, watch);
  }

  void on_caught_up(Session& session, uint64_t request) {
    session.channel->send(
        {Type::caught_up, wire::kNoRank, members.epoch(), request, {{"cells", cells.describe_open()}}, {}});
  }

  json info() {
    json ranks = json::array();
    for (int rank = 0; rank < members.size(); ++rank) {
      const membership::Member& member = members.at(rank);
      ranks.push_back({{"rank", rank},
                       {"pid", member.alive ? member.pid : 0},
                       {"status", membership::name_of(member.status)},
                       {"incarnation", member.incarnation},
                       {"why", member.why},
                       {"device", members.environment(rank).value("DDIP_DEVICE", "cpu")}});
    }
    json clients = json::array();
    for (const Session& session : door.sessions()) {
      if (session.is_client()) clients.push_back({{"client", session.client}, {"pid", session.pid}});
    }
    json facts = options.facts;
    facts.update({{"name", options.name},
                  {"app", members.environment(0).value("DDIP_APP", "")},
                  {"world_size", members.size()},
                  {"epoch", members.epoch()},
                  {"phase", membership::name_of(members.phase())},
                  {"pid", ::getpid()},
                  {"ranks", ranks},
                  {"cells", cells.describe_open()},
                  {"clients", clients},
                  {"started", started},
                  {"last_sequence", records.last_sequence()},
                  {"journal", records.folder().string()},
                  {"idle", options.idle},
                  {"user_cells", cells.count()},
                  {"trouble", records.trouble()},
                  {"agent", events.describe_agent()}});
    return facts;
  }

  // ---- life

  void stop(const std::string& why) {
    if (members.phase() == membership::Phase::stopping || members.phase() == membership::Phase::stopped) return;
    records.note("the group stops: " + why);
    records.save_acknowledgements();
    members.stop();
  }

  // Something happened; the idle clock starts anew. Idle = no cell open and no client connected.
  // The timer is not set anew for each message, which would cost more than the message: it looks when it is over.
  void touch() {
    last_touched = std::chrono::steady_clock::now();
    if (options.idle > 0 && was_ready && !idle_timer) look_again_in(idle_time());
  }

  std::chrono::nanoseconds idle_time() const {
    return std::chrono::nanoseconds(static_cast<int64_t>(options.idle * 1e9));
  }

  void look_again_in(std::chrono::nanoseconds pause) {
    idle_timer = loop.after(pause, [this] {
      if (cells.any_open() || std::ranges::any_of(door.sessions(), &Session::is_client)) touch();
      auto left = last_touched + idle_time() - std::chrono::steady_clock::now();
      if (left > std::chrono::nanoseconds(0)) return look_again_in(left);
      stop(fmt::format("nobody used it for {} s (--idle)", options.idle));
    });
  }

  void watch_owner() {
    owner_pidfd = open_pidfd(options.owner);
    auto end = [this] {
      owner_died.cancel();
      stop("its owner (pid " + std::to_string(options.owner) + ") ended");
    };
    if (owner_pidfd)
      owner_died = loop.when_readable(owner_pidfd.get(), end);
    else
      loop.post(end);
  }

  net::Loop& loop;
  Options options;
  const Events events;
  Members members;
  Door door;
  Records records;
  Cells cells;
  Inquiries inquiries;

  const double started = wall_seconds();
  bool was_ready = false;
  Fd owner_pidfd;
  net::Loop::Handle owner_died;
  net::Loop::Handle idle_timer;
  std::chrono::steady_clock::time_point last_touched;
};

Coordinator::Coordinator(net::Loop& loop, Options options, Events events)
    : core_(std::make_unique<Core>(loop, std::move(options), std::move(events))) {}

Coordinator::~Coordinator() = default;

void Coordinator::start() { core_->members.begin(); }
void Coordinator::stop(const std::string& why) { core_->stop(why); }
void Coordinator::on_agent(Message message) { core_->on_agent(std::move(message)); }

}  // namespace ddip::coordinator
