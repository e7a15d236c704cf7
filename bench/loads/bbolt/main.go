// A bbolt database as a load: fill it, walk it in order of its keys, or compact it.
//
// usage: bbolt fill|walk|compact PATH [KEYS|COPY]
package main

import (
	"encoding/binary"
	"fmt"
	"log"
	"math/rand"
	"os"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

const (
	perBatch   = 10_000
	valueBytes = 600
	maxTxBytes = 64 << 10
)

var bucket = []byte("rows")

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: bbolt fill|walk|compact PATH [KEYS|COPY]")
	}
	act := map[string]func(string) error{"fill": fill, "walk": walk, "compact": compact}[os.Args[1]]
	if act == nil {
		log.Fatalf("bbolt: unknown command %q", os.Args[1])
	}
	if err := act(os.Args[2]); err != nil {
		log.Fatalf("bbolt: %s: %v", os.Args[2], err)
	}
}

// fill writes keys in random order, so that neighbours in key order are far apart in the file.
func fill(path string) error {
	if len(os.Args) != 4 {
		return fmt.Errorf("fill needs a number of keys")
	}
	keys, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	db, err := bolt.Open(path, 0o644, &bolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	defer db.Close()
	draw := rand.New(rand.NewSource(7))
	order, value := draw.Perm(keys), make([]byte, valueBytes)
	for first := 0; first < keys; first += perBatch {
		err = db.Update(func(tx *bolt.Tx) error {
			rows, err := tx.CreateBucketIfNotExists(bucket)
			if err != nil {
				return err
			}
			for _, key := range order[first:min(first+perBatch, keys)] {
				draw.Read(value)
				if err := rows.Put(binary.BigEndian.AppendUint64(nil, uint64(key)), value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return db.Sync()
}

// walk reads all rows in order of their keys and prints their number and a sum of their bytes.
func walk(path string) error {
	db, err := bolt.Open(path, 0o644, &bolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	count, sum := 0, uint64(0)
	err = db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucket).ForEach(func(_, value []byte) error {
			for _, b := range value {
				sum += uint64(b)
			}
			count++
			return nil
		})
	})
	fmt.Println(count, sum)
	return err
}

// compact copies the database to a third path in order of its keys, as the program bbolt does.
func compact(path string) error {
	if len(os.Args) != 4 {
		return fmt.Errorf("compact needs a path for the copy")
	}
	from, err := bolt.Open(path, 0o644, &bolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := bolt.Open(os.Args[3], 0o644, &bolt.Options{NoSync: true})
	if err != nil {
		return err
	}
	defer to.Close()
	return bolt.Compact(to, from, maxTxBytes)
}
