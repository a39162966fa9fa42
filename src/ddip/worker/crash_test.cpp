#include "ddip/worker/crash.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "ddip/base/fd.h"

namespace ddip::worker {
namespace {

// A process that leaves `words` unread in its output pipe and then dies of `number`. What its memory file holds.
std::string last_words_of(int number, const std::string& words) {
  Fd file(::memfd_create("crash_test", MFD_CLOEXEC));
  pid_t pid = ::fork();
  if (pid == 0) {
    rlimit none{};
    ::setrlimit(RLIMIT_CORE, &none);
    int out[2], err[2];
    if (::pipe2(out, O_NONBLOCK) != 0 || ::pipe2(err, O_NONBLOCK) != 0) ::_exit(1);
    keep_last_words(file.get());
    last_words_come_from(out[0], err[0]);
    if (::write(err[1], words.data(), words.size()) != static_cast<ssize_t>(words.size())) ::_exit(2);
    ::raise(number);
    ::_exit(3);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << "the signal still does its work: " << status;
  std::string text(100000, '\0');
  ssize_t count = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

}  // namespace

TEST(Crash, unread_output_is_kept_and_the_signal_does_its_work) {
  for (int number : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL})
    EXPECT_EQ(last_words_of(number, "assertion failed"), "assertion failed") << number;
}

TEST(Crash, whole_full_pipe_is_kept) { EXPECT_EQ(last_words_of(SIGABRT, std::string(60000, 'w')).size(), 60000u); }

TEST(Crash, nothing_to_say_is_nothing) { EXPECT_EQ(last_words_of(SIGSEGV, ""), ""); }

}  // namespace ddip::worker
