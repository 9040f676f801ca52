// Starts very many goroutines that wait, two calls deep, on one thread, and ends them in random order.
// Prints how much memory the process gained while they waited, and the time for each. See
// bench/rows/parked.py, which does the same in Python.
//
//	parked park|sleep|queue|recv COUNT
package main

import (
	"bufio"
	"fmt"
	"math/rand"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const long = 100000 * time.Second

//go:noinline
func inner(wait func()) { wait() }

//go:noinline
func outer(wait func(), ended *sync.WaitGroup) {
	inner(wait)
	ended.Done()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// memory returns the bytes of resident pages and of the page tables that map them.
func memory() int64 {
	file, err := os.Open("/proc/self/status")
	check(err)
	defer file.Close()
	var sum int64
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if words[0] == "VmRSS:" || words[0] == "VmPTE:" {
			kilobytes, err := strconv.ParseInt(words[1], 10, 64)
			check(err)
			sum += 1024 * kilobytes
		}
	}
	return sum
}

func pair() (net.Conn, int) {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0)
	check(err)
	file := os.NewFile(uintptr(ends[0]), "pair")
	conn, err := net.FileConn(file)
	check(err)
	check(file.Close())
	return conn, ends[1]
}

// ways returns a function that makes the wait of goroutine i, and one that wakes goroutine i.
func ways(kind string, count int) (func(i int) func(), func(i int)) {
	switch kind {
	case "park":
		signals := make([]chan struct{}, count)
		return func(i int) func() {
			signal := make(chan struct{})
			signals[i] = signal
			return func() { <-signal }
		}, func(i int) { close(signals[i]) }
	case "sleep":
		cancels := make([]chan struct{}, count)
		return func(i int) func() {
			cancel := make(chan struct{})
			cancels[i] = cancel
			return func() {
				timer := time.NewTimer(long)
				select {
				case <-timer.C:
				case <-cancel:
					timer.Stop()
				}
			}
		}, func(i int) { close(cancels[i]) }
	case "queue":
		queue := make(chan struct{})
		return func(int) func() { return func() { <-queue } }, func(int) { queue <- struct{}{} }
	default:
		conns := make([]net.Conn, count)
		others := make([]int, count)
		for i := range conns {
			conns[i], others[i] = pair()
		}
		byte1 := []byte("x")
		return func(i int) func() {
				conn := conns[i]
				return func() {
					var got [1]byte
					_, err := conn.Read(got[:])
					check(err)
				}
			}, func(i int) {
				_, err := syscall.Write(others[i], byte1)
				check(err)
			}
	}
}

func main() {
	kind := os.Args[1]
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	runtime.GOMAXPROCS(1)
	wait, wake := ways(kind, count)
	order := rand.New(rand.NewSource(0)).Perm(count)
	var ended sync.WaitGroup
	ended.Add(count)
	runtime.GC()

	before := memory()
	start := time.Now()
	for i := 0; i < count; i++ {
		go outer(wait(i), &ended)
	}
	runtime.Gosched()
	parked := time.Since(start)
	held := memory() - before

	start = time.Now()
	for _, i := range order {
		wake(i)
	}
	ended.Wait()
	finished := time.Since(start)
	n := float64(count)
	fmt.Printf("%d %.1f %.1f\n", held, float64(parked)/n, float64(finished)/n)
}
