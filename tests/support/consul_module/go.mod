module waybill/consul

go 1.20

require github.com/hashicorp/consul v1.14.11
