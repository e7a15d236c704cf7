/* Programs that work alone, and which a recording must not end. The first argument names one; each reads the file `data`
   and prints `finished`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char memory[4096];
static int file;

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(9);
}

static void reads(int count) {
    for (int nth = 0; nth < count; nth++)
        if (read(file, memory, 100) != 100) _exit(8);
}

/* A filter that ends the process at any system call which is not in `allowed`. */
static void filter(const int *allowed, int count, int otherwise, int found) {
    struct sock_filter code[64];
    int at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int nth = 0; nth < count; nth++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[nth], 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, found);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, otherwise);
    struct sock_fprog program = {at, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) _exit(7);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(7);
}

static void *waits(void *end) {
    char byte;
    if (read(*(int *)end, &byte, 1) < 0) _exit(6);
    return NULL;
}

static void at_signal(int number) {
    (void)number;
    reads(1);
}

static volatile int is_done;

static void at_signal_alone(int number) {
    at_signal(number);
    is_done = 1;
}

/* Runs the handler on a stack of so many bytes; prints how many of them were used. */
static void on_stack(size_t bytes) {
    unsigned char *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, 0xa5, bytes);
    /* The dynamic linker finds the function here, and not on the small stack. */
    int other = open("/dev/null", O_RDONLY);
    if (read(other, memory, 1) != 0) _exit(4);
    stack_t given = {stack, 0, bytes};
    if (sigaltstack(&given, NULL)) _exit(3);
    struct sigaction action = {.sa_handler = at_signal_alone, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    if (!is_done) _exit(5);
    size_t free = 0;
    while (free < bytes && stack[free] == 0xa5) free++;
    printf("used %zu\n", bytes - free);
    fflush(stdout);
}

/* Reads by streams of the C library, whose buffer has 4 KiB. */
static void streams(void) {
    static char text[100000];
    FILE *stream = fopen("data", "r");
    if (fread(text, 10, 1, stream) != 1) _exit(8);
    if (fread(text, 1, 90, stream) != 90) _exit(8);
    if (fread(text, 1, 10000, stream) != 10000) _exit(8);
    if (fseek(stream, 50000, SEEK_SET) || fread(text, 10, 1, stream) != 1) _exit(8);
    if (fseek(stream, 50100, SEEK_SET) || fread(text, 10, 1, stream) != 1) _exit(8);
    ungetc(7, stream);
    if (getc(stream) != 7) _exit(8);
    for (int nth = 0; nth < 3200; nth++)
        if (getc_unlocked(stream) == EOF) _exit(8);
    if (fseek(stream, 262000, SEEK_SET) || fread(text, 1000, 1, stream) != 0) _exit(8);
    fclose(stream);
    stream = fopen("lines", "r");
    char *line = NULL;
    size_t room = 0, bytes = 0;
    for (int nth = 0; nth < 50; nth++)
        if (getline(&line, &room, stream) != 100) _exit(8);
    while (fgets(text, sizeof text, stream)) bytes += strlen(text);
    if (bytes != 5000) _exit(8);
    fclose(stream);
    /* The end of a pipe, and a stream that can't be read. */
    stream = popen("echo some text", "r");
    if (!fgets(text, sizeof text, stream) || strcmp(text, "some text\n")) _exit(8);
    pclose(stream);
    stream = fopen("/", "r");
    errno = 0;
    if (fread(text, 1, 10, stream) || errno != EISDIR) _exit(8);
    fclose(stream);
}

/* Asynchronous reads, and wrong addresses. */
static void asynchronous(void) {
    aio_context_t context = 0;
    struct iocb requests[40] = {0}, *list[40];
    struct io_event events[40];
    struct iovec pieces[2] = {{memory, 100}, {memory + 100, 200}};
    if (syscall(SYS_io_setup, 64, &context)) _exit(8);
    for (int nth = 0; nth < 40; nth++) {
        list[nth] = &requests[nth];
        requests[nth] = (struct iocb){.aio_fildes = file, .aio_lio_opcode = IOCB_CMD_PREAD,
                                      .aio_buf = (unsigned long)memory, .aio_nbytes = 300, .aio_offset = nth * 5000};
    }
    requests[39].aio_lio_opcode = IOCB_CMD_PREADV;
    requests[39].aio_buf = (unsigned long)pieces;
    requests[39].aio_nbytes = 2;
    if (syscall(SYS_io_submit, context, 40, list) != 40) _exit(8);
    for (long fetched = 0; fetched < 40;) {
        long count = syscall(SYS_io_getevents, context, 1, 40, events, NULL);
        if (count < 1) _exit(8);
        for (int nth = 0; nth < count; nth++)
            if (events[nth].res != 300) _exit(8);
        fetched += count;
    }
    if (syscall(SYS_io_submit, context, 1, (void *)8) != -1 || errno != EFAULT) _exit(8);
    list[0] = (void *)16;
    if (syscall(SYS_io_submit, context, 1, list) != -1 || errno != EFAULT) _exit(8);
    syscall(SYS_io_destroy, context);
}

int main(int count, char **arguments) {
    const char *name = arguments[1];
    file = open("data", O_RDONLY);
    if (file < 0) return 2;
    if (!strcmp(name, "strict")) {
        reads(2);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 3;
        reads(3);
        say("finished\n");
        syscall(SYS_exit, 0);
    }
    if (!strcmp(name, "strict-by-number")) {
        reads(2);
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0)) return 3;
        reads(3);
        say("finished\n");
        syscall(SYS_exit, 0);
    }
    if (!strcmp(name, "filter")) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        reads(2);
        int allowed[] = {SYS_read, SYS_write, SYS_exit_group, SYS_madvise};
        filter(allowed, 4, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
        reads(3);
        /* An allocator that gives memory back: no call that a recording would have. */
        for (int nth = 0; nth < 4; nth++)
            if (madvise(page, 4096, MADV_DONTNEED)) _exit(3);
        say("finished\n");
        _exit(0);
    }
    if (!strcmp(name, "filter-and-start")) {
        /* The started program has the filter from its first instruction. */
        int never[] = {SYS_lseek, SYS_statx, SYS_readlink, SYS_readlinkat, SYS_fcntl, SYS_getpid, SYS_gettid};
        filter(never, 7, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
        execl("/proc/self/exe", "program", "reader", NULL);
        return 4;
    }
    if (!strcmp(name, "no-clock")) {
        reads(2);
        if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0)) return 3;
        reads(3);
    }
    if (!strcmp(name, "reader")) reads(5);
    if (!strcmp(name, "streams")) streams();
    if (!strcmp(name, "asynchronous")) asynchronous();
    if (!strcmp(name, "sleeper")) {
        for (int nth = 0; nth < 200; nth++) {
            reads(1);
            if (nth == 100 && count > 2 && system(arguments[2])) return 4;
        }
        for (int nth = 0; nth < 3000; nth++) pread(file, memory, 10, nth);
    }
    if (!strcmp(name, "stack")) on_stack(strtoul(arguments[2], NULL, 10));
    if (!strcmp(name, "locked")) {
        struct rlimit limit = {8 << 20, 8 << 20};
        if (setrlimit(RLIMIT_MEMLOCK, &limit) || mlockall(MCL_CURRENT | MCL_FUTURE)) return 3;
        reads(5);
    }
    if (!strcmp(name, "cancelled")) {
        int ends[2];
        pthread_t thread;
        if (pipe(ends) || pthread_create(&thread, NULL, waits, &ends[0])) return 3;
        usleep(100000);
        pthread_cancel(thread);
        void *result;
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) return 5;
        reads(5);
    }
    say("finished\n");
    return 0;
}
