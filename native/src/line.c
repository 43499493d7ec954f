/* line.c: the one place that prints. It builds a line of text and writes it without stdio, which would allocate. */

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct line {
    char text[640];
    size_t length;
};

static void line_bytes(struct line *line, const char *text, size_t length)
{
    length = size_min(length, sizeof line->text - 1 - line->length);
    memcpy(line->text + line->length, text, length);
    line->length += length;
}

static void line_text(struct line *line, const char *text) { line_bytes(line, text, strlen(text)); }

/* Appends text from outside, such as the value of a setting: its first 100 bytes, with '?' for control characters. */
static void line_quote(struct line *line, const char *text)
{
    const size_t shown = 100;
    for (size_t i = 0; text[i] != 0 && i < shown; i++)
        line_bytes(line, (unsigned char)text[i] < ' ' ? "?" : text + i, 1);
    if (strlen(text) > shown) line_text(line, "...");
}

static void line_digits(struct line *line, uint64_t n, unsigned base)
{
    char digits[24], *at = digits + sizeof digits;
    do *--at = "0123456789abcdef"[n % base];
    while ((n /= base) != 0);
    line_bytes(line, at, (size_t)(digits + sizeof digits - at));
}

static void line_number(struct line *line, int64_t n)
{
    if (n < 0) line_text(line, "-");
    line_digits(line, n < 0 ? -(uint64_t)n : (uint64_t)n, 10);
}

static void line_address(struct line *line, uintptr_t address)
{
    line_text(line, "0x");
    line_digits(line, address, 16);
}

/* Writes the line. That a file is closed, or that nobody reads it any more, must not end the program: SIGPIPE is
 * blocked, and taken back unless one was pending before. Raw system calls, because they are no cancellation points and
 * the thread may hold a lock. */
static void line_write(struct line *line, int file)
{
    const struct timespec now = {0};
    sigset_t broken, before, waiting;
    line->text[line->length++] = '\n';
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    bool own = sigpending(&waiting) == 0 && sigismember(&waiting, SIGPIPE) == 1;
    if (syscall(SYS_write, file, line->text, line->length) < 0 && errno == EPIPE && !own)
        syscall(SYS_rt_sigtimedwait, &broken, NULL, &now, _NSIG / 8);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void line_end(struct line *line) { line_write(line, STDERR_FILENO); }
