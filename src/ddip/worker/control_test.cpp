#include "ddip/worker/control.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "ddip/base/error.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/testing/own_output.h"
#include "ddip/wire/codec.h"
#include "ddip/worker/crash.h"

namespace ddip::worker {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;
using Clock = std::chrono::steady_clock;

std::atomic<int> signals_seen = 0;
std::atomic<Clock::time_point> signal_time;
std::atomic<bool> signal_on_main_thread = true;
thread_local bool is_main_thread = false;

void on_sigint(int) {
  ++signals_seen;
  signal_time = Clock::now();
  signal_on_main_thread = is_main_thread;
}

// The other end of a worker's control socket.
class FakeAgent {
 public:
  explicit FakeAgent(Fd socket) : socket_(std::move(socket)), reader_(socket_.get()) {}

  void send(Type type, uint64_t id, json body = json::object(), const std::vector<int>& descriptors = {}) {
    net::send_blocking(socket_.get(), wire::encode({type, wire::kNoRank, 0, id, std::move(body), {}}), descriptors);
  }

  // The next message; nothing if none comes in time.
  std::optional<Message> next(std::chrono::milliseconds patience = 10s) {
    auto deadline = Clock::now() + patience;
    while (received_.empty()) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
      pollfd event{socket_.get(), POLLIN, 0};
      int ready = ::poll(&event, 1, static_cast<int>(std::max<int64_t>(0, left)));
      if (ready < 0 && errno == EINTR) continue;  // the tests' own SIGINT
      if (ready != 1) return std::nullopt;
      for (net::Parcel& parcel : reader_.read_available()) {
        Message message = wire::decode(parcel.body);
        message.descriptors = std::move(parcel.descriptors);
        received_.push_back(std::move(message));
      }
    }
    Message message = std::move(received_.front());
    received_.pop_front();
    return message;
  }

  // Skips what is of another type.
  Message await(Type type) {
    while (auto message = next()) {
      if (message->type == type) return std::move(*message);
    }
    throw TimedOut(wire::name_of(type) + " did not come");
  }

  // All output of one cell and stream until its done.
  std::string output_until_done(uint64_t cell, int stream, size_t* largest = nullptr) {
    std::string text;
    while (auto message = next()) {
      if (message->id != cell) continue;
      if (message->type == Type::done) return text;
      if (message->type != Type::output || message->body.at("stream") != stream) continue;
      const auto& bytes = message->body.at("bytes").get_binary();
      if (largest) *largest = std::max(*largest, bytes.size());
      text.append(bytes.begin(), bytes.end());
    }
    throw TimedOut("the cell's end did not come");
  }

  int socket() const { return socket_.get(); }

 private:
  Fd socket_;
  net::BlockingReader reader_;
  std::deque<Message> received_;
};

class ControlTest : public testing::Test {
 protected:
  ControlTest() {
    is_main_thread = true;
    signals_seen = 0;
    struct sigaction action{};
    action.sa_handler = on_sigint;
    ::sigaction(SIGINT, &action, &old_action);
    auto [ours, theirs] = net::socket_pair();
    agent = std::make_unique<FakeAgent>(std::move(ours));
    control = std::make_unique<Control>(options(std::move(theirs)));
  }

  // The agent's end must outlive the worker's: a worker without an agent kills its process group.
  void TearDown() override {
    control.reset();
    output.restore();
    ::sigaction(SIGINT, &old_action, nullptr);
  }

  ControlOptions options(Fd socket) {
    ControlOptions options;
    options.socket = std::move(socket);
    options.rank = 3;
    options.incarnation = 8;
    options.read_stacks = [] { return std::string("File \"cell.py\", line 1"); };
    options.interrupt_interpreter = [this] {
      ++soft;
      soft_time = Clock::now();
    };
    options.about = {{"start", "fork"}};
    return options;
  }

  uint64_t take_task() {
    auto task = control->next_task(10s);
    return std::holds_alternative<Control::Task>(task) ? std::get<Control::Task>(task).id : 0;
  }

  // Works like a cell until `over`, or a deadline.
  bool busy_until(const std::function<bool()>& over, std::chrono::milliseconds patience = 10s) {
    auto deadline = Clock::now() + patience;
    while (!over()) {
      if (Clock::now() > deadline) return false;
      ::usleep(1000);
    }
    return true;
  }

  void end_cell(uint64_t cell) {
    control->leave();
    control->finish(cell, {{"outcome", "ok"}});
  }

  OwnOutput output;
  struct sigaction old_action{};
  std::atomic<int> soft = 0;
  std::atomic<Clock::time_point> soft_time;
  std::unique_ptr<FakeAgent> agent;
  std::unique_ptr<Control> control;
};

// Two ends of a TCP connection on loopback.
std::pair<Fd, Fd> tcp_pair() {
  auto [listener, port] = net::listen_on_loopback(0);
  Fd ours(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(ours.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  return {std::move(ours), Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

bool still_open(const Fd& socket) {
  char byte;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

}  // namespace

TEST_F(ControlTest, says_ready_first) {
  Message ready = agent->next().value();
  EXPECT_EQ(ready.type, Type::ready);
  EXPECT_EQ(ready.rank, 3);
  EXPECT_EQ(ready.id, 8u);
  EXPECT_EQ(ready.body.at("pid"), ::getpid());
  EXPECT_EQ(ready.body.at("start"), "fork");
}

TEST_F(ControlTest, tasks_come_in_order_with_body_and_descriptors) {
  Fd file(::memfd_create("control_test", MFD_CLOEXEC));
  agent->send(Type::execute, 1, {{"code", "one"}}, {file.get()});
  agent->send(Type::execute, 2, {{"code", "two"}});
  auto first = control->next_task(10s);
  ASSERT_TRUE(std::holds_alternative<Control::Task>(first));
  EXPECT_EQ(std::get<Control::Task>(first).body.at("code"), "one");
  EXPECT_EQ(std::get<Control::Task>(first).descriptors.size(), 1u);
  EXPECT_EQ(take_task(), 2u);
}

TEST_F(ControlTest, no_task_in_time_is_nothing) {
  EXPECT_TRUE(std::holds_alternative<std::monostate>(control->next_task(1ms)));
}

TEST_F(ControlTest, stop_ends_the_wait_for_tasks) {
  agent->send(Type::stop, 0);
  EXPECT_TRUE(std::holds_alternative<Control::Ended>(control->next_task(10s)));
}

TEST_F(ControlTest, output_of_every_kind_keeps_its_order_and_comes_before_the_end) {
  std::string expected;
  control->enter(1);
  for (int round = 0; round < 200; ++round) {
    std::string number = std::to_string(round);
    std::string raw = "raw " + number + "\n", python = "python " + number + "\n", stdio = "stdio " + number + "\n";
    ASSERT_EQ(::write(1, raw.data(), raw.size()), static_cast<ssize_t>(raw.size()));
    ASSERT_TRUE(control->write(1, Stream::out, python, 10s));
    std::fputs(stdio.c_str(), stdout);  // line-buffered: it is in the pipe now
    expected += raw + python + stdio;
  }
  std::fputs("the rest", stdout);
  expected += "the rest";
  end_cell(1);
  EXPECT_TRUE(agent->output_until_done(1, 1) == expected);
}

TEST_F(ControlTest, output_of_two_streams_is_told_apart) {
  control->enter(1);
  control->write(1, Stream::out, "out", 10s);
  control->write(1, Stream::err, "err", 10s);
  ASSERT_EQ(::write(2, "raw", 3), 3);
  end_cell(1);
  EXPECT_EQ(agent->output_until_done(1, 2), "errraw");
}

TEST_F(ControlTest, display_note_and_ending_keep_their_order_with_output) {
  control->enter(1);
  control->write(1, Stream::out, "a", 10s);
  control->display(1, {{"kind", "display"}});
  control->write(1, Stream::out, "b", 10s);
  control->note(1, "careful");
  end_cell(1);
  std::vector<std::string> order;
  for (;;) {
    Message message = agent->next().value();
    if (message.type == Type::ready) continue;
    order.push_back(wire::name_of(message.type));
    EXPECT_EQ(message.rank, 3);
    if (message.type == Type::done) break;
  }
  EXPECT_EQ(order, (std::vector<std::string>{"output", "display", "output", "note", "done"}));
}

TEST_F(ControlTest, ending_carries_its_descriptors) {
  Fd file(::memfd_create("control_test", MFD_CLOEXEC));
  std::vector<Fd> descriptors;
  descriptors.push_back(std::move(file));
  control->finish(1, {{"outcome", "ok"}}, std::move(descriptors));
  EXPECT_EQ(agent->await(Type::done).descriptors.size(), 1u);
}

TEST_F(ControlTest, one_print_larger_than_a_frame_arrives_in_pieces) {
  std::string large(20u << 20, 'x');
  for (size_t at = 0; at < large.size(); at += 1001) large[at] = static_cast<char>('a' + at % 26);
  control->enter(1);
  std::thread printing([&] {
    EXPECT_TRUE(control->write(1, Stream::out, large, 60s));
    control->finish(1, {{"outcome", "ok"}});
  });
  size_t largest = 0;
  EXPECT_TRUE(agent->output_until_done(1, 1, &largest) == large);
  EXPECT_LE(largest, 256u << 10);
  printing.join();
  control->leave();
}

TEST_F(ControlTest, display_or_ending_larger_than_a_frame_does_not_end_the_worker) {
  std::string large(20u << 20, 'x');
  control->enter(1);
  control->display(1, {{"kind", "display"}, {"data", {{"text/html", large}}}});
  Message note = agent->await(Type::note);
  EXPECT_NE(note.body.at("text").get<std::string>().find("too large"), std::string::npos);
  control->leave();
  control->finish(1, {{"outcome", "error"}, {"type", "ValueError"}, {"message", large}, {"traceback", large}});
  Message done = agent->await(Type::done);
  EXPECT_EQ(done.id, 1u);
  EXPECT_EQ(done.body.at("outcome"), "error");
  EXPECT_NE(done.body.at("message").get<std::string>().find("too large"), std::string::npos);
}

TEST_F(ControlTest, writer_is_slowed_down_while_the_agent_reads_nothing) {
  std::string block(64u << 10, 'b');
  size_t accepted = 0;
  control->enter(1);
  while (control->write(1, Stream::out, block, 100ms)) {
    accepted += block.size();
    ASSERT_LT(accepted, 32u << 20) << "piled up";
  }
  EXPECT_GT(accepted, 4u << 20);
  std::thread reading([&] { EXPECT_EQ(agent->output_until_done(1, 1).size(), accepted + block.size()); });
  EXPECT_TRUE(control->write(1, Stream::out, block, 10s)) << "and goes on when it reads again";
  end_cell(1);
  reading.join();
}

TEST_F(ControlTest, flood_of_a_subprocess_is_slowed_down_too) {
  control->enter(1);
  // As `yes` would: bytes into descriptor 1, as many as it takes.
  std::atomic<size_t> written = 0;
  std::atomic<bool> stop = false;
  std::thread flood([&, fd = ::dup(1)] {
    std::string block(32u << 10, 'f');
    while (!stop && written < (64u << 20)) {
      pollfd event{fd, POLLOUT, 0};
      if (::poll(&event, 1, 10) != 1) continue;
      ssize_t count = ::write(fd, block.data(), 4096);
      if (count > 0) written += static_cast<size_t>(count);
    }
    ::close(fd);
  });
  size_t before = 0;
  EXPECT_TRUE(busy_until([&] {  // until nothing moves any more
    size_t now = written;
    ::usleep(100000);
    return now > 0 && std::exchange(before, now) == now;
  }));
  EXPECT_LT(written, 32u << 20) << "piled up in memory";
  stop = true;
  flood.join();
  size_t total = 0;
  std::thread reading([&] { total = agent->output_until_done(1, 1).size(); });
  end_cell(1);
  reading.join();
  EXPECT_GT(total, 0u);
}

TEST_F(ControlTest, interrupt_is_answered_while_a_subprocess_floods) {
  control->enter(1);
  pid_t pid = ::fork();
  if (pid == 0) {
    std::string block(64u << 10, 'f');
    while (::write(1, block.data(), block.size()) > 0) {
    }
    ::_exit(0);
  }
  std::atomic<bool> stop = false;
  std::thread reading([&] {
    while (!stop) agent->next(10ms);
  });
  ::usleep(50000);
  agent->send(Type::interrupt, 1, {{"because", "user"}});
  EXPECT_TRUE(busy_until([&] { return soft == 1; }, 2s));
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  control->leave();
  stop = true;
  reading.join();
}

TEST_F(ControlTest, threads_write_at_once_and_each_keeps_its_order) {
  constexpr int kThreads = 4, kLines = 500;
  std::thread reading;
  control->enter(1);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int line = 0; line < kLines; ++line) {
        EXPECT_TRUE(control->write(1, Stream::out, std::to_string(thread) + " " + std::to_string(line) + "\n", 10s));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  end_cell(1);
  std::string text = agent->output_until_done(1, 1);
  std::vector<int> next(kThreads, 0);
  size_t lines = 0;
  for (size_t at = 0; at < text.size(); ++lines) {
    size_t end = text.find('\n', at);
    int thread = -1, line = -1;
    ASSERT_EQ(std::sscanf(text.c_str() + at, "%d %d", &thread, &line), 2);
    ASSERT_EQ(next.at(static_cast<size_t>(thread))++, line);
    at = end + 1;
  }
  EXPECT_EQ(lines, static_cast<size_t>(kThreads * kLines));
}

// ---- interrupts

TEST_F(ControlTest, task_that_has_not_begun_is_cancelled_without_a_signal) {
  agent->send(Type::execute, 1);
  agent->send(Type::execute, 2);
  agent->send(Type::interrupt, 2, {{"because", "user"}});
  Message done = agent->await(Type::done);
  EXPECT_EQ(done.id, 2u);
  EXPECT_EQ(done.body.at("outcome"), "interrupted");
  EXPECT_EQ(take_task(), 1u);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(control->next_task(1ms)));
  EXPECT_EQ(soft, 0);
}

TEST_F(ControlTest, ladder_is_soft_at_once_then_a_signal_then_a_report) {
  control->enter(5);
  EXPECT_TRUE(control->armed());
  auto begun = Clock::now();
  agent->send(Type::interrupt, 5, {{"because", "user"}});
  ASSERT_TRUE(busy_until([&] { return soft == 1; }));
  EXPECT_LT(soft_time.load() - begun, 100ms);
  EXPECT_EQ(signals_seen, 0);
  ASSERT_TRUE(busy_until([&] { return signals_seen == 1; }));
  EXPECT_GE(signal_time.load() - begun, 100ms);
  EXPECT_TRUE(signal_on_main_thread);
  Message note = agent->await(Type::note);
  EXPECT_GE(Clock::now() - begun, 700ms);
  EXPECT_NE(note.body.at("text").get<std::string>().find("rank 3 goes on"), std::string::npos);
  EXPECT_EQ(note.id, 5u);
  EXPECT_EQ(soft, 1);
  EXPECT_EQ(signals_seen, 1);
  end_cell(5);
}

TEST_F(ControlTest, nothing_comes_after_the_cell_was_left) {
  control->enter(5);
  agent->send(Type::interrupt, 5, {{"because", "user"}});
  ASSERT_TRUE(busy_until([&] { return soft == 1; }));
  control->leave();
  EXPECT_FALSE(control->armed());
  control->enter(6);  // the next cell is not meant
  EXPECT_FALSE(busy_until([&] { return signals_seen > 0 || soft > 1; }, 300ms));
  control->leave();
}

TEST_F(ControlTest, interrupt_of_another_cell_hits_nobody) {
  control->enter(5);
  agent->send(Type::interrupt, 4, {{"because", "user"}});
  agent->send(Type::interrupt, 0, {{"because", "user"}});
  EXPECT_FALSE(busy_until([&] { return soft > 0 || signals_seen > 0; }, 250ms));
  control->leave();
  agent->send(Type::interrupt, 0, {{"because", "user"}});  // between cells there is none to interrupt
  EXPECT_FALSE(busy_until([&] { return soft > 0 || signals_seen > 0; }, 250ms));
}

TEST_F(ControlTest, interrupt_inside_a_collective_aborts_its_group_and_says_so) {
  auto [ours, theirs] = tcp_pair();
  auto [other, other_end] = tcp_pair();
  control->collectives().add_group("mine", {ours.get()});
  control->collectives().add_group("other", {other.get()});
  control->enter(5);
  control->collectives().enter("all_reduce", "mine");
  auto begun = Clock::now();
  agent->send(Type::interrupt, 5, {{"because", "user"}});
  ASSERT_TRUE(busy_until([&, &end = theirs] { return !still_open(end); }));
  EXPECT_GE(Clock::now() - begun, 400ms);
  EXPECT_TRUE(still_open(other_end));
  Message note = agent->await(Type::note);
  EXPECT_NE(note.body.at("text").get<std::string>().find("aborted all_reduce on group 'mine' (1 connection closed)"),
            std::string::npos);
  control->collectives().leave();
  end_cell(5);
}

TEST_F(ControlTest, a_group_without_a_name_is_not_named) {
  auto [ours, theirs] = tcp_pair();
  control->collectives().add_group("", {ours.get()});
  control->enter(5);
  control->collectives().enter("a collective inside torch", "");
  agent->send(Type::interrupt, 5, {{"because", "user"}});
  ASSERT_TRUE(busy_until([&, &end = theirs] { return !still_open(end); }));
  EXPECT_TRUE(agent->await(Type::note)
                  .body.at("text")
                  .get<std::string>()
                  .starts_with("interrupt: aborted a collective inside torch (1 connection closed)"));
  control->collectives().leave();
  end_cell(5);
}

TEST_F(ControlTest, failed_peer_aborts_a_collective_that_waits_for_it) {
  auto [ours, theirs] = tcp_pair();
  control->collectives().add_group("mine", {ours.get()});
  control->enter(5);
  control->collectives().enter("all_reduce", "mine");
  agent->send(Type::interrupt, 5, {{"because", "peer"}, {"peer", 1}, {"outcome", "lost"}, {"settle", 10.0}});
  auto begun = Clock::now();
  ASSERT_TRUE(busy_until([&, &end = theirs] { return !still_open(end); }));
  EXPECT_GE(Clock::now() - begun, 900ms);
  EXPECT_NE(agent->await(Type::note)
                .body.at("text")
                .get<std::string>()
                .find("rank 1 failed, so all_reduce on group 'mine' was aborted"),
            std::string::npos);
  EXPECT_EQ(soft, 0);
  EXPECT_EQ(signals_seen, 0) << "a cell that waits in a collective fails by itself";
  control->collectives().leave();
  end_cell(5);
}

TEST_F(ControlTest, failed_peer_aborts_also_a_collective_that_is_come_to_later) {
  auto [ours, theirs] = tcp_pair();
  control->collectives().add_group("mine", {ours.get()});
  control->enter(5);
  agent->send(Type::interrupt, 5, {{"because", "peer"}, {"peer", 1}, {"outcome", "error"}, {"settle", 1.2}});
  EXPECT_FALSE(busy_until([&] { return soft + signals_seen > 0; }, 1100ms));
  control->collectives().enter("all_reduce", "mine");  // where the signal of 1.2 s has no effect
  ASSERT_TRUE(busy_until([&, &end = theirs] { return !still_open(end); }));
  EXPECT_EQ(soft + signals_seen, 1);
  control->collectives().leave();
  end_cell(5);
}

TEST_F(ControlTest, failed_peer_leaves_collectives_that_come_and_go) {
  auto [ours, theirs] = tcp_pair();
  control->collectives().add_group("mine", {ours.get()});
  control->enter(5);
  agent->send(Type::interrupt, 5, {{"because", "peer"}, {"peer", 1}, {"outcome", "error"}, {"settle", 60}});
  for (int turn = 0; turn < 30; ++turn) {
    control->collectives().enter("all_reduce", "mine");
    EXPECT_FALSE(busy_until([&] { return soft + signals_seen > 0; }, 100ms));
    control->collectives().leave();
  }
  EXPECT_TRUE(still_open(theirs)) << "none of them lasted";
  end_cell(5);
}

TEST_F(ControlTest, failed_peer_of_a_cell_that_comes_later_is_not_forgotten) {
  auto [ours, theirs] = tcp_pair();
  control->collectives().add_group("mine", {ours.get()});
  agent->send(Type::execute, 6);
  control->enter(5);
  agent->send(Type::interrupt, 6, {{"because", "peer"}, {"peer", 1}, {"outcome", "error"}, {"settle", 60}});
  EXPECT_FALSE(busy_until([&, &end = theirs] { return !still_open(end); }, 1300ms)) << "its turn has not come";
  end_cell(5);
  auto task = control->next_task(5000ms);
  ASSERT_EQ(std::get<Control::Task>(task).id, 6u);
  control->enter(6);
  control->collectives().enter("all_reduce", "mine");
  EXPECT_TRUE(busy_until([&, &end = theirs] { return !still_open(end); }));
  control->collectives().leave();
  end_cell(6);
}

TEST_F(ControlTest, failed_peer_leaves_a_computation_its_time_and_then_interrupts_it_once) {
  auto [ours, theirs] = tcp_pair();
  control->collectives().add_group("mine", {ours.get()});
  control->enter(5);
  auto begun = Clock::now();
  agent->send(Type::interrupt, 5, {{"because", "peer"}, {"peer", 1}, {"outcome", "error"}, {"settle", 1.2}});
  ASSERT_TRUE(busy_until([&] { return soft + signals_seen == 1; }));
  EXPECT_GE(Clock::now() - begun, 1200ms);
  EXPECT_TRUE(still_open(theirs)) << "it waits in no collective";
  EXPECT_FALSE(busy_until([&] { return soft + signals_seen > 1; }, 200ms)) << "never more than that";
  end_cell(5);
}

// ---- questions

TEST_F(ControlTest, why_is_answered_while_the_main_thread_computes) {
  agent->send(Type::execute, 6);
  agent->send(Type::execute, 7);
  control->enter(5);
  control->collectives().enter("broadcast", "mine");
  agent->send(Type::why, 40);
  Message stacks = agent->await(Type::stacks);
  EXPECT_EQ(stacks.id, 40u);
  EXPECT_EQ(stacks.rank, 3);
  EXPECT_EQ(stacks.body.at("cell"), 5);
  EXPECT_GE(stacks.body.at("seconds"), 0);
  EXPECT_EQ(stacks.body.at("queued"), 2);
  EXPECT_EQ(stacks.body.at("stack"), "File \"cell.py\", line 1");
  EXPECT_EQ(stacks.body.at("collective").at("operation"), "broadcast");
  EXPECT_EQ(stacks.body.at("collective").at("number"), 1);
  control->collectives().leave();
  end_cell(5);
}

TEST_F(ControlTest, ping_is_answered_by_the_control_thread) {
  agent->send(Type::ping, 41);
  Message pong = agent->await(Type::stacks);
  EXPECT_EQ(pong.id, 41u);
  EXPECT_EQ(pong.body.at("pong"), true);
}

TEST_F(ControlTest, line_is_asked_for_and_comes_back) {
  control->ask(1, "name? ", true);
  Message request = agent->await(Type::input_request);
  EXPECT_EQ(request.body.at("prompt"), "name? ");
  EXPECT_EQ(request.body.at("secret"), true);
  EXPECT_EQ(control->asked_reply(1ms), std::nullopt);
  agent->send(Type::input_reply, 1, {{"text", "ada"}});
  EXPECT_EQ(control->asked_reply(10s), "ada");
  control->ask(1, "again? ", false);
  agent->send(Type::input_reply, 1, {{"error", "nobody is there"}});
  EXPECT_THROW(control->asked_reply(10s), ConfigError);
  control->ask(1, "and again? ", false);
  agent->send(Type::stop, 0);
  EXPECT_THROW(control->asked_reply(10s), ConfigError);
}

// ---- the end. In a process (and process group) of its own, for it takes everybody along.

namespace {

// How a worker with a child ends when `what` happens at the agent's end.
template <typename What>
void worker_group_dies_of(What what, const std::string& last_line = "") {
  const Fd words(::memfd_create("last-words", MFD_CLOEXEC));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd watch(ends[0]), held(ends[1]);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    watch.reset();
    auto [ours, theirs] = net::socket_pair();
    if (::fork() == 0) {  // a subprocess of the user's, which has nothing to do with our sockets
      ours.reset();
      theirs.reset();
      for (;;) ::pause();
    }
    FakeAgent agent(std::move(ours));
    keep_last_words(words.get());
    ControlOptions options;
    options.socket = std::move(theirs);
    Control control(std::move(options));
    agent.next();
    what(agent);
    ::sleep(20);
    ::_exit(0);
  }
  held.reset();
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  pollfd event{watch.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&event, 1, 5000), 1) << "its child lives on";
  std::string said(4096, '\0');
  said.resize(static_cast<size_t>(std::max<ssize_t>(0, ::pread(words.get(), said.data(), said.size(), 0))));
  EXPECT_EQ(said, last_line);
}

}  // namespace

TEST(ControlEnd, worker_without_an_agent_ends_with_its_children) {
  worker_group_dies_of([](FakeAgent& agent) { ::shutdown(agent.socket(), SHUT_RDWR); });
}

TEST(ControlEnd, worker_that_is_sent_garbage_ends_with_its_children) {
  worker_group_dies_of([](FakeAgent& agent) { agent.send(Type::welcome, 0); },
                       "ended by ddip (SIGKILL): its connection to ddip broke (a worker does not expect welcome)\n");
}

}  // namespace ddip::worker
