/* The floor of `trunkline bench transfer`: the same pages in the same order, copied by plain C. One line of input is one
 * round, answered by "seconds, CPU seconds of the sender, of the receiver".
 *
 *     copy tcp PAGES PAGE_BYTES      a process sends page after page, another receives them, over loopback
 *     copy memory PAGES PAGE_BYTES   memcpy from one piece of memory to another
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static char *take(size_t size) {
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(1);
    madvise(memory, size, MADV_HUGEPAGE);
    memset(memory, 1, size);
    return memory;
}

static int *shuffled(int count, unsigned seed) {
    int *order = malloc(count * sizeof *order);
    srand(seed);
    for (int i = 0; i < count; i++) order[i] = i;
    for (int i = count - 1; i > 0; i--) {
        int j = rand() % (i + 1), other = order[i];
        order[i] = order[j], order[j] = other;
    }
    return order;
}

static void whole(int writing, int fd, char *at, size_t size) {
    while (size) {
        ssize_t moved = writing ? send(fd, at, size, 0) : recv(fd, at, size, 0);
        if (moved <= 0) exit(1);
        at += moved, size -= moved;
    }
}

static void send_rounds(int listening, int count, size_t page) {
    if (nice(10) < 0) exit(1); /* As who lends pages does. */
    char *memory = take(count * page), go;
    int *order = shuffled(count, 1), peer = accept(listening, NULL, NULL);
    while (recv(peer, &go, 1, 0) == 1) {
        double began = cpu();
        for (int i = 0; i < count; i++) whole(1, peer, memory + order[i] * page, page);
        double used = cpu() - began;
        whole(1, peer, (char *)&used, sizeof used);
    }
    exit(0);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int tcp = !strcmp(argv[1], "tcp"), count = atoi(argv[2]), peer = -1;
    size_t page = atol(argv[3]);
    if (tcp) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof address;
        int listening = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listening, (void *)&address, size) || listen(listening, 1)) return 1;
        getsockname(listening, (void *)&address, &size);
        if (!fork()) send_rounds(listening, count, page);
        close(listening);
        peer = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(peer, (void *)&address, size)) return 1;
    }
    char *memory = take(count * page), *source = tcp ? NULL : take(count * page), line[8];
    int *to = shuffled(count, 2), *from = shuffled(count, 1);
    while (fgets(line, sizeof line, stdin)) {
        double sender = 0, began = now(), used = cpu();
        if (tcp) whole(1, peer, "g", 1);
        for (int i = 0; i < count; i++) {
            if (tcp) whole(0, peer, memory + to[i] * page, page);
            else memcpy(memory + to[i] * page, source + from[i] * page, page);
        }
        double took = now() - began;
        used = cpu() - used;
        if (tcp) whole(0, peer, (char *)&sender, sizeof sender);
        printf("%.9f %.9f %.9f\n", took, sender, used);
        fflush(stdout);
    }
    return 0;
}
