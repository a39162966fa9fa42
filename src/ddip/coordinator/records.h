// What happens in cells, as records: into the journal first, then to every session that follows the cell. A session
// that does not take them falls behind and is given the rest from the journal, at its own pace; one that comes back is
// given what it missed.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ddip/coordinator/door.h"
#include "ddip/coordinator/journal.h"
#include "ddip/net/loop.h"

namespace ddip::coordinator {

class Records {
 public:
  struct About {
    RecordKind kind;
    uint64_t cell = 0;  // 0: of no cell
    int rank = wire::kNoRank;
    uint8_t stream = 0;
    bool late = false;  // said after the cell's end, by a thread of it
  };
  struct Watch {
    uint64_t request;                         // the client's own number
    std::optional<uint64_t> after;            // unset: what the client has not acknowledged
    std::optional<uint64_t> first_open_cell;  // for a client that nobody knows: the past begins before it
  };
  // The watch of this session has been given everything there is.
  using CaughtUp = std::function<void(Session&, uint64_t request)>;

  // Throws as Journal does. The door's sessions are those that may follow.
  Records(net::Loop& loop, Door& door, std::filesystem::path folder, CaughtUp caught_up);

  void add(const About& about, std::string_view body);
  // Neither journaled nor seen by anyone else: for silent cells.
  void tell(Session& session, const About& about, std::string_view body);
  // A sentence about the group, for people.
  void note(const std::string& text);

  // A session has come. Throws ConfigError if the journal cannot keep its client's name.
  void enter(Session& session);
  // It is given the records of this cell, its end included.
  void follow(Session& session, uint64_t cell) { session.following.cells.insert(cell); }
  // It is given those of every cell.
  void watch(Session& session, const Watch& watch);
  // It is given what is said after its cell's end, from now on, and nothing else; what it does not take in time is left
  // to the journal.
  void watch_late(Session& session, uint64_t request);
  // Gives a session that fell behind, or has just come, what it missed, as far as its queue takes it.
  void catch_up(Session& session);

  // The client has shown everything up to `sequence`. Written down a moment later, or by save_acknowledgements().
  void acknowledge(const Session& session, uint64_t sequence);
  void save_acknowledgements();

  uint64_t last_sequence() const { return journal_.last_sequence(); }
  const std::string& trouble() const { return journal_.trouble(); }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void begin_at(Session& session, const Watch& watch);

  net::Loop& loop_;
  Door& door_;
  const std::filesystem::path folder_;
  const CaughtUp caught_up_;
  Journal journal_;
  std::map<std::string, uint64_t> acknowledgements_;  // not yet written down
  std::map<std::string, uint64_t> known_since_;       // client → last record before it first came
  net::Loop::Handle acknowledge_timer_;
};

}  // namespace ddip::coordinator
