/* First process of every pod: holds the pod's namespaces and reaps its orphans. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

static void ignore(int signal) { (void)signal; }

int main(void) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGINT);
  sigaddset(&awaited, SIGTERM);
  sigaddset(&awaited, SIGCHLD);
  sigprocmask(SIG_BLOCK, &awaited, NULL);
  /* A signal whose default is to be ignored is not kept for sigwait. */
  signal(SIGCHLD, ignore);
  for (;;) {
    int received;
    if (sigwait(&awaited, &received) == 0 && received != SIGCHLD)
      return 0;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
  }
}
