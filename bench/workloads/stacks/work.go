package main
import ("fmt";"sort";"encoding/json")
func fib(n int) int { if n<2 {return n}; return fib(n-1)+fib(n-2) }
func main(){ ch:=make(chan int); for g:=0;g<4;g++ { go func(){ s:=0; for i:=0;i<3;i++ { s+=fib(30); m:=map[string][]int{}; for j:=0;j<50000;j++{m[fmt.Sprint(j)]=[]int{j}}; b,_:=json.Marshal(m); var x map[string][]int; json.Unmarshal(b,&x); k:=[]string{}; for a:=range x{k=append(k,a)}; sort.Strings(k)}; ch<-s}() }; for g:=0;g<4;g++{<-ch} }
